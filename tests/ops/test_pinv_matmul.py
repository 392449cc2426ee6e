"""The product of an inverse and a matrix: that of the inverse itself, with its gradients, whatever computes it."""

from functools import partial

import pytest
import torch

from lra.ops import pinv as module
from lra.ops.pinv import MAX_FACTORED_STEPS, cubic, pinv_matmul, tikhonov


def drawn(c=16):
    """Matrices as CUR has them, one with padded rows, and what they are multiplied with."""
    g = torch.Generator().manual_seed(0)
    m = (3 * torch.randn(2, 2, c, c, dtype=torch.float64, generator=g)).softmax(-1)
    m[1, 1, c // 2 :] = 0
    return m.requires_grad_(), torch.randn(2, 2, c, 5, dtype=torch.float64, generator=g).requires_grad_()


def with_gradients(value, *given):
    return [value, *torch.autograd.grad(value.square().sum(), given)]


@pytest.mark.parametrize("steps", range(1, MAX_FACTORED_STEPS + 1))
def test_factors_are_the_inverse_times_x(monkeypatch, steps):
    """Also with the gradient of the gradient. Errors grow by 13/4 a step."""
    m, x = drawn()
    expected = with_gradients(cubic(m, steps=steps) @ x, m, x)
    monkeypatch.setattr(module, "HALF_TYPES", (torch.float64,))
    pinv = partial(cubic, steps=steps)
    for right, found in zip(expected, with_gradients(pinv_matmul(pinv, m, x), m, x), strict=True):
        torch.testing.assert_close(found, right, rtol=0, atol=1e-14 * 3.25**steps * right.abs().max().item())
    m, x = (each[0, :1].detach().requires_grad_() for each in drawn(3))
    assert torch.autograd.gradgradcheck(partial(pinv_matmul, pinv), (m, x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_lose_nothing_by_it(dtype):
    m, x = drawn()
    narrow = x.detach().to(dtype).requires_grad_()
    x = narrow.detach().double().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        value = pinv_matmul(partial(cubic, steps=4), m.float(), narrow)
    found = with_gradients(value, m, narrow)
    assert value.dtype == torch.float32
    for one, right in zip(found, with_gradients(cubic(m, steps=4) @ x, m, x), strict=True):
        precision = torch.finfo(one.dtype).eps if one is found[2] else 1e-5
        torch.testing.assert_close(one.double(), right, rtol=0, atol=precision * right.abs().max().item())


PINVS = {
    "more": partial(cubic, steps=MAX_FACTORED_STEPS + 1),
    "start": partial(cubic, steps=4, init="two_norms"),
    "ridge": partial(tikhonov, ridge=0.1),
}


@pytest.mark.parametrize("name", [*PINVS])
def test_other_inverses_are_computed(name):
    m, x = (each.detach().float() for each in drawn())
    assert torch.equal(pinv_matmul(PINVS[name], m, x.bfloat16()), PINVS[name](m) @ x.bfloat16().float())
    assert torch.equal(pinv_matmul(PINVS[name], m, x), PINVS[name](m) @ x)
