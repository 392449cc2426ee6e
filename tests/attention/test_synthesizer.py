"""Synthesizers against softmax(S) v with S written out, in float64."""

import pytest
import torch
from support.features import PATTERNS, TOKEN_SIZES, D, H, all_real, masks, same_with_gradients, tokens

from lra.attention.synthesizer import Dense, Factorised, Random

KINDS = {"random": Random, "factorised": Factorised, "dense": Dense}
DIM, L = 8, 9


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
    for n in range(len(x)):
        for h in range(H):
            for i in range(L):
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
@PATTERNS
def test_is_its_definition(pattern, kind, dot_product):
    torch.manual_seed(0)
    mixer = KINDS[kind](TOKEN_SIZES, dim=DIM, dot_product=dot_product).double().eval()
    if kind == "dense":
        torch.nn.init.normal_(mixer.bias)
    x, mask = tokens(DIM, L), masks(L)[pattern]
    expected = oracle(kind, mixer, x, all_real(mask, L), dot_product)
    same_with_gradients(mixer(x, mask), expected, [x, *mixer.parameters()])
