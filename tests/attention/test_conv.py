"""The convolution and the filters of Nystromformer against their definitions, pair by pair."""

import pytest
import torch
from support.features import same_with_gradients

from lra.attention.base import Sizes
from lra.attention.conv import Conv
from lra.ops.convolution import convolve_rows

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


@pytest.mark.parametrize("heads, kernel", [(1, 1), (1, 35), (2, 3), (2, 35), (3, 65), (2, 201)])
@pytest.mark.parametrize("L", [1, 12, 20, 46, 64, 65, 256])
def test_rows_are_multiplied_by_the_banded_matrix_of_a_filter(heads, kernel, L):
    """Output and gradients, at lengths for which torch's own convolution gives another gradient too."""
    torch.manual_seed(0)
    filters, v = torch.randn(heads, 1, kernel, 1).double(), torch.randn(2, heads, L, 5).double()
    tap = torch.arange(L) - torch.arange(L)[:, None] + kernel // 2
    inside = (tap >= 0) & (tap < kernel)
    band = filters.requires_grad_()[:, 0, :, 0][:, tap.clamp(0, kernel - 1)] * inside  # (H,L,L)
    same_with_gradients(convolve_rows(v.requires_grad_(), filters), band @ v, (v, filters))
