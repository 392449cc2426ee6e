"""The convolution against its definition, pair by pair."""

import pytest
import torch

from lra.attention.base import Sizes
from lra.attention.conv import Conv

DIM, L = 3, 70  # more positions than one block of the product
SIZES = Sizes(heads=1, head_dim=DIM, value_dim=DIM, length=L)


def make(**options) -> Conv:
    torch.manual_seed(0)
    return Conv(SIZES, dim=DIM, **options).double()


def reference(model: Conv, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """One sum for each output: the weight of a distance is that of its tap, the token itself being the middle one."""
    v, width = x @ model.values.weight.T + model.values.bias, model.filters.shape[1]
    here = width - 1 if model.causal else width // 2
    rows = []
    for n in range(len(x)):
        for i in range(L):
            seen = [(j, model.filters[:, here + j - i]) for j in range(L) if 0 <= here + j - i < width and mask[n, j]]
            rows.append(sum(w * v[n, j] for j, w in seen) / sum(w.abs() for _, w in seen) if seen else 0 * v[0, 0])
    return torch.stack(rows).view_as(x) @ model.output.weight.T + model.output.bias


@pytest.mark.parametrize("options", [{"width": 1}, {"width": 5}, {"width": 61}, {"width": 4, "causal": True}])
def test_sums_over_real_neighbours(options):
    model = make(**options)
    x = torch.randn(2, L, DIM, dtype=torch.float64)
    mask = torch.stack([torch.arange(L) < 66, torch.rand(L) < 0.5])
    mask[1, 0] = True
    out, want = model(x, mask), reference(model, x, mask)
    torch.testing.assert_close(out[mask], want[mask], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(model(x), reference(model, x, torch.ones_like(mask)), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_sees_its_width_and_no_further(causal):
    model = make(width=7, causal=causal)
    x = torch.randn(1, L, DIM, dtype=torch.float64, requires_grad=True)
    model(x)[0, 30].sum().backward()
    seen = x.grad[0].abs().sum(-1).nonzero()[:, 0].tolist()
    assert seen == (list(range(24, 31)) if causal else list(range(27, 34)))


def test_constant_values_of_one_sign_stay_as_they_are():
    model = make(width=11)
    model.filters.data.abs_()
    ones = torch.ones(1, L, DIM, dtype=torch.float64)
    assert torch.allclose(model._mix(ones, torch.arange(L)[None] < 5)[:, :5], ones[:, :5])
