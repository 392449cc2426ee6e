"""The product of a pseudo-inverse and a matrix."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from .pinv import cubic
from .precision import NARROW, at_least_float32

MOST = 6  # steps, after which rounding to float32 has become 1e-5 of the result: below that of 16 bits


def solve(pinv: Callable[[Tensor], Tensor], m: Tensor, x: Tensor) -> Tensor:
    """Compute pinv(m) x in float32 at least, with autocast off.

    If x has 16 bits and pinv is ``cubic`` of few steps, the inverse itself is not computed. Its steps are factors of x,

        Z x = Aᵀ W x / √s,   A = m / √s,   W = g(E_K) ... g(E_1),   g(E) = I + E + E² + E³ / 4
        E_1 = I - A Aᵀ,   E_k+1 = E_k³ (3 I + E_k) / 4

    since E = I - m Z is symmetric. This takes a third fewer products of both passes; but E no longer follows from Z, so
    that rounding errors grow by 13/4 in each step.

    Args:
        pinv: an inverse, (...,c,c) -> (...,c,c).
        m: (...,c,c).
        x: (...,c,E).

    Returns:
        (...,c,E) in float32 or float64.
    """
    narrow = x.dtype in NARROW
    with torch.autocast(x.device.type, enabled=False):
        m, x = at_least_float32(m), at_least_float32(x)
        steps = _steps(pinv) if narrow else None
        if steps is None:
            return pinv(m) @ x
        a, shape = m.flatten(0, -3), x.shape
        sums = a.abs().sum(-2).max(-1).values.clamp(min=torch.finfo(a.dtype).tiny)
        factor = sums.rsqrt()[:, None, None]
        a = a * factor
        return (a.mT @ (factor * _Factors.apply(a, x.flatten(0, -3), steps))).view(shape)


def _steps(pinv: Callable[[Tensor], Tensor]) -> int | None:
    """The steps of ``cubic`` if there are few; None for none or more, for another start and for another inverse."""
    usual = isinstance(pinv, partial) and pinv.func is cubic and pinv.keywords.get("init") in (None, "per_matrix")
    return pinv.keywords["steps"] if usual and 0 < pinv.keywords["steps"] <= MOST else None


def factors(a: Tensor, y: Tensor, steps: int, kept: list[Tensor] | None = None) -> Tensor:
    """Compute W y for a (G,c,c) and y (G,c,E); ``kept`` collects E, E², y and E y of each step."""
    e = torch.baddbmm(torch.eye(a.shape[-1], dtype=a.dtype, device=a.device), a, a.mT, alpha=-1)
    for k in range(steps):
        square, u = e @ e, e @ y
        if kept is not None:
            kept += e, square, y, u
        y = torch.baddbmm(y + u, square, torch.add(y, u, alpha=1 / 4))
        if k < steps - 1:
            e = square @ e.lerp(square, 1 / 4)
    return y


def factors_backward(a: Tensor, kept: list[Tensor], grad: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the gradients of a and of the first y from that of W y.

    Of the gradient of a symmetric E only the symmetric part matters: H is that of the next E and its transpose.
    """
    H = None
    for k in reversed(range(0, len(kept), 4)):
        e, square, y, u = kept[k : k + 4]
        dv = square @ grad
        du = torch.add(grad, dv, alpha=1 / 4)
        dsquare, de = grad @ torch.add(y, u, alpha=1 / 4).mT, du @ y.mT
        if H is not None:
            x = square @ H
            de = de.add(x, alpha=3 / 8)
            dsquare = dsquare.add(x, alpha=1 / 8).baddbmm(H, e.lerp(square, 1 / 4), alpha=1 / 2)
        de = torch.baddbmm(de, e, dsquare + dsquare.mT)
        H = de + de.mT
        grad = torch.baddbmm(grad + dv, e, du)
    return -(H @ a), grad


class _Factors(torch.autograd.Function):
    """``factors`` with the backward pass above."""

    @staticmethod
    def forward(ctx, a, y, steps):
        kept = [] if any(ctx.needs_input_grad) else None
        out = factors(a, y, steps, kept)
        ctx.steps = steps
        ctx.save_for_backward(a, y, *kept or ())
        return out

    @staticmethod
    def backward(ctx, grad):
        a, y, *kept = ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False):
            if torch.is_grad_enabled():  # for second derivatives, since the saved tensors have no history
                kept = []
                factors(a, y, ctx.steps, kept)
            return *factors_backward(a, kept, grad), None
