"""Dropout: how much, how much it keeps in the mean, its gradient, independence, and when it does nothing."""

import numpy as np
import pytest
import torch
from conftest import p_value

from lra.model import dropout
from lra.model.dropout import Dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.97])
def test_share_mean_and_gradient(p):
    torch.manual_seed(0)
    x = torch.rand(7, 11, 1300, dtype=torch.float64).add_(1).requires_grad_()
    out = Dropout(p)(x)
    kept = out != 0
    n = x.numel()
    assert p_value([kept.sum(), n - kept.sum()], torch.tensor([1 - p, p]) * n) > 1e-3
    factor = (out / x)[kept]
    torch.testing.assert_close(factor, factor[:1].expand_as(factor), rtol=1e-14, atol=0)
    assert abs(factor[0] * (1 - p) - 1) <= 2**-17 / (1 - p - 2**-17) + 1e-14  # p is right to half of 2^-16
    out.backward(torch.full_like(x, 3))
    torch.testing.assert_close(x.grad, 3 * (out / x).detach())


def test_neighbours_are_independent():
    torch.manual_seed(1)
    kept = Dropout(0.5)(torch.ones(2**16)).bool().view(-1, 4).long()  # the four that share 64 bits
    pattern = kept @ torch.tensor([8, 4, 2, 1])
    assert p_value(pattern.bincount(minlength=16)) > 1e-3


def test_numbers_are_those_of_numpy_and_pieces_are_independent(monkeypatch):
    monkeypatch.setattr(dropout, "PIECE", 2**12)
    size = 2**16 + 2**11 + 7
    torch.manual_seed(0)
    seed = int(torch.empty((), dtype=torch.int64).random_())
    torch.manual_seed(0)
    kept = Dropout(0.5)(torch.ones(size)).bool()
    streams = [np.random.Generator(np.random.SFC64((seed, first))) for first in range(0, size, 2**12)]
    draws = np.concatenate([each.integers(2**64, size=2**10, dtype=np.uint64).view(np.uint16) for each in streams])
    assert np.array_equal(kept, draws[:size] >= 2**15)
    pieces = kept[: 2**16].view(16, -1).long()
    pairs = (2 * pieces[:-1] + pieces[1:]).flatten()
    assert p_value(pairs.bincount(minlength=4)) > 1e-3


def test_any_shape_evaluation_and_the_ends():
    for x in (torch.ones(()), torch.ones(0), torch.ones(6, 4).t()):
        assert Dropout(0.1)(x).shape == x.shape
        assert Dropout(0.5).eval()(x) is x and Dropout(0.0)(x) is x
        assert not Dropout(1.0)(x).any()
    with pytest.raises(ValueError, match=r"dropout must be from 0 to 1, not 1\.5"):
        Dropout(1.5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tied", [False, True])
def test_16_bits_keep_or_drop_and_scale_once(dtype, tied):
    """1 / 0.9 itself is no number of 16 bits: each entry is rounded once, after the product."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, 500, 40, generator=g).to(dtype).requires_grad_()
    drop = Dropout(0.1, tied=tied)
    torch.manual_seed(5)
    out = drop(x)
    torch.manual_seed(5)
    kept = drop(torch.ones(3, 500, 40)) != 0
    scale = dropout.LEVELS / (dropout.LEVELS - round(0.1 * dropout.LEVELS))
    assert out.dtype == dtype and torch.equal(out, torch.where(kept, x.float() * scale, 0).to(dtype))
    grad = torch.randn(3, 500, 40, generator=g).to(dtype)
    (saved,) = out.grad_fn.saved_tensors
    out.backward(grad)
    assert torch.equal(x.grad, torch.where(kept, grad.float() * scale, 0).to(dtype))
    assert saved.dtype == dtype and saved.unique().tolist() == [0, 1]


def test_tied_dropout_zeroes_a_feature_at_all_positions_of_a_row():
    torch.manual_seed(0)
    out = Dropout(0.25, tied=True)(torch.ones(50, 9, 40))
    assert torch.equal(out, out[:, :1].expand_as(out)) and set(out.unique().tolist()) == {0.0, out.max().item()}
    assert out.max().item() == pytest.approx(4 / 3, rel=1e-4) and abs((out == 0).float().mean() - 0.25) < 0.05
