"""The factors g(E_k) of the cubic iteration, applied to a matrix y one after the other.

g(E) = I + E + E² + E³ / 4, and E_k = I - m Z_k is the residual of step k. ``pinv.pinv_matmul`` derives the factors; it
defines the matrix m, its largest column sum s and Z_k. For G matrices: a = A = m / √s (G,c,c), y (G,c,E).
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def apply_factors(
    a: Float[Tensor, "G c c"],
    y: Float[Tensor, "G c E"],
    steps: int,
    saved: list[Tensor] | None = None,
) -> Float[Tensor, "G c E"]:
    """Compute g(E_k) ... g(E_0) y; ``saved`` collects E, E², y and E y of each step."""
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    e = torch.baddbmm(eye, a, a.mT, alpha=-1)  # E_0 = I - A Aᵀ
    for k in range(steps):
        square = e @ e
        u = e @ y
        if saved is not None:
            saved += [e, square, y, u]
        # g(E) y = y + E y + E² (y + E y / 4)
        inner = torch.add(y, u, alpha=1 / 4)
        y = torch.baddbmm(y + u, square, inner)
        # The next E = E² (3 E + E²) / 4
        is_last = k == steps - 1
        if not is_last:
            cubic_factor = e.lerp(square, 1 / 4)
            e = square @ cubic_factor
    return y


def apply_factors_backward(
    a: Float[Tensor, "G c c"],
    saved: list[Tensor],
    grad: Float[Tensor, "G c E"],
) -> tuple[Float[Tensor, "G c c"], Float[Tensor, "G c E"]]:
    """Compute the gradients of a and of y from the gradient of the result of ``apply_factors``.

    A step is y' = y + u + S (y + u/4) with u = E y and S = E², and E' = S M with M = 3/4 E + 1/4 S. For a product
    Z = X Y the gradients are dX = dZ Yᵀ and dY = Xᵀ dZ. E and S are symmetric, so only the symmetric part of their
    gradients matters; H is the gradient of E' plus its transpose, and H/2 stands for the gradient of E'. Then M gets
    S H / 2, of which 3/4 goes to E and 1/4 to S:

        dv = S dy'                     gradient of y + u/4
        du = dy' + dv/4
        dS = dy' (y + u/4)ᵀ  +  H M / 2  +  S H / 8
        dE = du yᵀ  +  3/8 S H  +  E (dS + dSᵀ)
        dy = dy' + dv + E du
        H  = dE + dEᵀ                  for the step before;   E_0 = I - A Aᵀ gives dA = -H A
    """
    H = None
    for first in reversed(range(0, len(saved), 4)):
        e, square, y, u = saved[first : first + 4]
        dv = square @ grad
        du = torch.add(grad, dv, alpha=1 / 4)
        inner = torch.add(y, u, alpha=1 / 4)  # y + u/4
        dsquare = grad @ inner.mT
        de = du @ y.mT
        # The last step has no next E.
        if H is not None:
            square_h = square @ H
            cubic_factor = e.lerp(square, 1 / 4)  # M
            de = de.add(square_h, alpha=3 / 8)
            dsquare = dsquare.add(square_h, alpha=1 / 8)
            dsquare = dsquare.baddbmm(H, cubic_factor, alpha=1 / 2)
        symmetric = dsquare + dsquare.mT
        de = torch.baddbmm(de, e, symmetric)
        H = de + de.mT
        grad = torch.baddbmm(grad + dv, e, du)
    # There is at least one step.
    assert H is not None
    return -(H @ a), grad


class Factors(torch.autograd.Function):
    """``apply_factors`` with ``apply_factors_backward``."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, y: Tensor, steps: int) -> Tensor:
        needs_gradient = any(ctx.needs_input_grad)
        saved: list[Tensor] = []
        out = apply_factors(a, y, steps, saved if needs_gradient else None)
        ctx.steps = steps
        ctx.save_for_backward(a, y, *saved)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        a, y, *saved = ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False):
            # Second derivatives need a history, which saved tensors lack.
            if torch.is_grad_enabled():
                saved = []
                apply_factors(a, y, ctx.steps, saved)
            grad_a, grad_y = apply_factors_backward(a, saved, grad)
        return grad_a, grad_y, None
