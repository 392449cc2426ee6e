"""The start of S4D, and long convolutions against their sum over lags, token by token."""

import math

import pytest
import torch

from lra.attention.base import Sizes
from lra.attention.long_conv import LongConv
from lra.attention.s4d import S4D

DIM, STATES, L = 3, 8, 13
SIZES = Sizes(heads=1, head_dim=DIM, value_dim=DIM, length=L)


def make(**options) -> S4D:
    torch.manual_seed(0)
    return S4D(SIZES, dim=DIM, states=STATES, **options).double()


def test_legs_starts_with_the_inputs_of_hippo():
    """V B of the halves and their conjugates is HiPPO's B up to what is clipped."""
    model = make(init="legs")
    b = torch.view_as_complex(model.b)[0]
    norm = (2 * b.abs().square().sum()).sqrt().item()
    assert b.imag.abs().max() <= 2 and norm <= math.sqrt(sum(2 * i + 1 for i in range(STATES))) + 1e-5


def long_conv(dropout=0.0, length=L, **options) -> LongConv:
    torch.manual_seed(0)
    sizes = Sizes(heads=1, head_dim=DIM, value_dim=DIM, length=length, dropout=dropout)
    return LongConv(sizes, dim=DIM, **({"scale": 0.5, "squash": 0.3} | options)).double()


def squashed(weights, limit):
    return [[[0.0 if abs(w) <= limit else w - limit if w > 0 else w + limit for w in h] for h in k] for k in weights]


@pytest.mark.parametrize("options", [{}, {"bidirectional": False}, {"squash": 0.0}, {"length": L + 5}], ids=str)
def test_is_the_sum_over_lags(options):
    model = long_conv(**options)
    kernels = squashed(model.weights.tolist(), options.get("squash", 0.3))
    g = torch.Generator().manual_seed(1)
    x, mask = torch.randn(2, L, DIM, generator=g, dtype=torch.float64), torch.rand(2, L, generator=g) < 0.7
    expected = model.skip * x
    for t in range(L):
        for s in range(L):
            if t >= s or len(kernels) == 2:  # the next token is the first of the second kernel
                weight = [kernels[0][h][t - s] if t >= s else kernels[1][h][s - t - 1] for h in range(DIM)]
                expected[:, t] += torch.tensor(weight, dtype=torch.float64) * (x * mask[..., None])[:, s]
    torch.testing.assert_close(model(x, mask), expected, rtol=1e-10, atol=1e-12)


def test_squashed_entries_have_no_gradient():
    model = long_conv()
    model(torch.randn(1, L, DIM, dtype=torch.float64)).square().sum().backward()
    small = model.weights.abs() <= 0.3
    assert 0 < small.sum() < small.numel() and (model.weights.grad[small] == 0).all()


def test_dropout_is_of_the_kernel_and_in_training_only():
    model = long_conv(dropout=0.25, squash=0.0, length=4000)
    kept = model.train().kernel(4000) / torch.cat([model.weights[0], model.weights[1].flip(-1)], -1)
    torch.testing.assert_close(kept, (kept != 0).double() * 4 / 3)
    # standard deviation of a share of 24,000 draws: 0.0028
    assert abs((kept == 0).double().mean() - 0.25) < 0.012
    assert torch.equal(model.eval().kernel(4000)[:, :4000], model.weights[0])
