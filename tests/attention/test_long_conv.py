"""Long convolutions: sums over lags written out, the squashed kernel, its dropout and its learning rate."""

import pytest
import torch
from conftest import config

from lra.attention.base import Sizes
from lra.attention.long_conv import LongConv
from lra.train import optim

DIM, L = 3, 11


def make(dropout=0.0, length=L, **options) -> LongConv:
    torch.manual_seed(0)
    sizes = Sizes(heads=1, head_dim=DIM, value_dim=DIM, length=length, dropout=dropout)
    return LongConv(sizes, dim=DIM, **({"scale": 0.5, "squash": 0.3} | options)).double()


def squashed(weights, limit):
    return [[[0.0 if abs(w) <= limit else w - limit if w > 0 else w + limit for w in h] for h in k] for k in weights]


@pytest.mark.parametrize("options", [{}, {"bidirectional": False}, {"squash": 0.0}, {"length": L + 5}], ids=str)
def test_is_the_sum_over_lags(options):
    model = make(**options)
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
    model = make()
    model(torch.randn(1, L, DIM, dtype=torch.float64)).square().sum().backward()
    small = model.weights.abs() <= 0.3
    assert 0 < small.sum() < small.numel() and (model.weights.grad[small] == 0).all()


def test_dropout_is_of_the_kernel_and_in_training_only():
    model = make(dropout=0.25, squash=0.0, length=4000)
    kept = model.train().kernel(4000) / torch.cat([model.weights[0], model.weights[1].flip(-1)], -1)
    torch.testing.assert_close(kept, (kept != 0).double() * 4 / 3)
    # standard deviation of a share of 24,000 draws: 0.0028
    assert abs((kept == 0).double().mean() - 0.25) < 0.012
    assert torch.equal(model.eval().kernel(4000)[:, :4000], model.weights[0])


def test_the_kernel_learns_at_its_own_rate():
    model = config("long_conv", "attn.rate=0.1").classifier()
    options = {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.05, "clip_norm": None}
    main, slow = optim.adamw(model, options).param_groups
    assert {id(p) for p in slow["params"]} == {id(block.mixer.weights) for block in model.blocks}
    assert slow["lr"] == pytest.approx(0.001) and slow["weight_decay"] == 0 and main["weight_decay"] == 0.05
