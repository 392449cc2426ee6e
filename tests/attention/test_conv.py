"""The convolution against its definition, pair by pair."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.ndimage import correlate1d
from scipy.signal import correlate

from lra.attention.base import Sizes
from lra.attention.conv import Conv
from lra.attention.nystrom import Nystrom
from lra.config import CONF
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


UNIT = torch.finfo(torch.float32).eps / 2  # unit roundoff
# Lengths for which torch's own convolution ends the process or gives another gradient.
ONE_HEAD = """
import torch
from lra.attention.base import Sizes
from lra.attention.nystrom import Nystrom
for L in range(10, 19):
    attention = Nystrom(Sizes(heads=1, head_dim=8, value_dim=8, length=L), landmarks=8)
    for _ in range(5):
        attention(*torch.randn(3, 8, 1, L, 8)).square().sum().backward()
"""


@pytest.mark.parametrize("heads, kernel", [(1, 1), (1, 35), (2, 3), (2, 35), (3, 65), (2, 201)])
@pytest.mark.parametrize("L", [1, 20, 46, 64, 65, 256])
def test_output_and_gradients_are_those_of_a_correlation(heads, kernel, L):
    torch.manual_seed(0)
    N, D = 2, 5
    filters = torch.randn(heads, 1, kernel, 1, requires_grad=True)
    v, g = torch.randn(N, heads, L, D, requires_grad=True), torch.randn(N, heads, L, D)
    out = convolve_rows(v, filters)
    by_v, by_weight = torch.autograd.grad(out, (v, filters), g)
    for h in range(heads):
        weight, wide, back = (x.detach().double().numpy() for x in (filters[h, 0, :, 0], v[:, h], g[:, h]))
        close(out[:, h], forward, wide, weight, terms=kernel)
        close(by_v[:, h], forward, back, weight[::-1], terms=kernel)
        close(by_weight[h, 0, :, 0], by_filter, wide, back, kernel // 2, terms=N * D * L)


def forward(v, weight):
    """v (N,L,D), weight (K,) -> (N,L,D)"""
    return correlate1d(v, weight, axis=1, mode="constant")


def by_filter(v, g, reach):
    """v, g (N,L,D) -> (2 reach + 1,)"""
    padded = np.pad(v, ((0, 0), (reach, reach), (0, 0)))
    return sum(correlate(x, y, "valid") for a, b in zip(padded, g, strict=True) for x, y in zip(a.T, b.T, strict=True))


def close(got, function, a, b, *more, terms):
    """Equal up to the rounding of a sum of products: 2 √terms u Σ |a b| (Higham and Mary 2019, with λ = 2)."""
    bound = 2 * np.sqrt(terms) * UNIT * function(abs(a), abs(b), *more)
    assert (abs(got.detach().numpy() - function(a, b, *more)) <= bound).all()


def test_one_head_and_short_rows_leave_the_process_alive():
    subprocess.run([sys.executable, "-c", ONE_HEAD], check=True, cwd=CONF.parent)


def test_parameters_and_their_start_are_those_of_torchs_convolution():
    torch.manual_seed(0)
    ours = Nystrom(Sizes(heads=3, head_dim=4, value_dim=4, length=64), kernel=35).conv.state_dict()
    torch.manual_seed(0)
    torchs = torch.nn.Conv2d(3, 3, (35, 1), padding=(17, 0), groups=3, bias=False).state_dict()
    assert ours.keys() == torchs.keys() and torch.equal(ours["weight"], torchs["weight"])
