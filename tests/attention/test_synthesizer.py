"""Synthesizers against softmax(S) v with S written out, in float64."""

import pytest
import torch
from support.features import same_with_gradients

from lra.attention.base import Sizes
from lra.attention.synthesizer import Dense, Factorised, Random

KINDS = {"random": Random, "factorised": Factorised, "dense": Dense}
N, L, LENGTH, DIM, H, D = 2, 9, 12, 8, 2, 4


def made(kind, dot_product):
    torch.manual_seed(0)
    sizes = Sizes(heads=H, head_dim=D, value_dim=D, length=LENGTH)
    return KINDS[kind](sizes, dim=DIM, dot_product=dot_product).double().eval()


def x():
    return torch.randn(N, L, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def mask():
    real = torch.ones(N, L, dtype=torch.bool)
    real[0, [0, 4]], real[1, 6:] = False, False
    return real


def score(kind, mixer, h, i, j, token):
    """S_ij of head h, the token's vector being that of row i."""
    if kind == "random":
        return mixer.table[h, i, j]
    if kind == "factorised":
        return (mixer.rows[h, i] * mixer.columns[h, j]).sum()
    first = slice(h * D, (h + 1) * D)
    hidden = torch.relu(mixer.hidden.weight[first] @ token + mixer.hidden.bias[first])
    return mixer.scores[h, j] @ hidden + mixer.bias[h, j, 0]


def oracle(kind, mixer, x, real, dot_product):
    heads = lambda t: t.unflatten(-1, (H, D))  # (N,L,H,D)
    *qk, v = (heads(t) for t in mixer.inputs(x).chunk(3 if dot_product else 1, -1))
    mixed = torch.zeros_like(v)
    for n in range(N):
        for h in range(H):
            for i in range(x.shape[1]):
                total = 0
                for j in real[n].nonzero()[:, 0]:
                    s = score(kind, mixer, h, i, j, x[n, i])
                    if dot_product:
                        s = s + qk[0][n, i, h] @ qk[1][n, j, h] / D**0.5
                    total = total + s.exp()
                    mixed[n, i, h] += s.exp() * v[n, j, h]
                mixed[n, i, h] /= total
    return mixer.output(mixed.flatten(2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dot_product", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_is_its_definition(kind, dot_product, masked):
    mixer = made(kind, dot_product)
    if kind == "dense":
        torch.nn.init.normal_(mixer.bias)
    real = mask() if masked else torch.ones(N, L, dtype=torch.bool)
    out, expected = mixer(x(), real if masked else None), oracle(kind, mixer, x(), real, dot_product)
    same_with_gradients(out, expected, list(mixer.parameters()))
