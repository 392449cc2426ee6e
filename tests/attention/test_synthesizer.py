"""Synthesizers against softmax(S) v with S written out, in float64."""

import pytest
import torch

from lra.attention.base import Sizes
from lra.attention.synthesizer import Dense, Factorised, Random

KINDS = {"random": Random, "factorised": Factorised, "dense": Dense}
N, L, LENGTH, DIM, H, D = 2, 9, 12, 8, 2, 4


def made(kind, **options):
    torch.manual_seed(0)
    sizes = Sizes(heads=H, head_dim=D, value_dim=D, length=LENGTH)
    return KINDS[kind](sizes, dim=DIM, **options).double().eval()


def x(length=L):
    return torch.randn(N, length, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


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
    mixer = made(kind, dot_product=dot_product)
    if kind == "dense":
        torch.nn.init.normal_(mixer.bias)
    real = mask() if masked else torch.ones(N, L, dtype=torch.bool)
    with torch.no_grad():
        out, expected = mixer(x(), real if masked else None), oracle(kind, mixer, x(), real, dot_product)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dot_product", [False, True])
def test_every_parameter_gets_a_gradient(kind, dot_product):
    mixer = made(kind, dot_product=dot_product)
    mixer(x(LENGTH)).square().sum().backward()
    for name, parameter in mixer.named_parameters():
        assert parameter.grad.isfinite().all() and parameter.grad.any(), name


def test_full_rank_is_the_free_matrix():
    free, product = made("random"), made("factorised", rank=LENGTH)
    with torch.no_grad():
        product.rows.copy_(free.table)
        product.columns.copy_(torch.eye(LENGTH))
    product.load_state_dict({k: v for k, v in free.state_dict().items() if k != "table"}, strict=False)
    torch.testing.assert_close(product(x(), mask()), free(x(), mask()), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_without_scores_it_is_the_mean_and_with_the_dot_product_exact_attention(kind):
    mean, vanilla = made(kind), made(kind, dot_product=True)
    for mixer in (mean, vanilla):
        for name in ("table", "rows", "scores"):
            if hasattr(mixer, name):
                torch.nn.init.zeros_(getattr(mixer, name))
    v = mean.inputs(x()) * mask()[..., None]
    expected = mean.output(v.sum(1, keepdim=True) / mask().sum(1)[:, None, None]).expand(-1, L, -1)
    torch.testing.assert_close(mean(x(), mask()), expected, rtol=1e-12, atol=1e-12)
    q, k, v = (t.unflatten(-1, (H, D)).transpose(1, 2) for t in vanilla.inputs(x()).chunk(3, -1))
    weights = (q @ k.mT / D**0.5).masked_fill(~mask()[:, None, None], float("-inf")).softmax(-1)
    exact = vanilla.output((weights @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(vanilla(x(), mask()), exact, rtol=1e-12, atol=1e-12)
