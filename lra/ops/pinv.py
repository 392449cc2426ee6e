"""Pseudo-inverses of batches of small matrices, (...,c,c) -> (...,c,c) in attention, and their products with a matrix.

All of them compute in float32 or wider and are differentiable; the gradient of ``cubic`` is the gradient of its steps.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ..options import Range, Whole, require_choice, require_range
from .precision import HALF_TYPES, full_precision, upcast

Inverse = Callable[[Tensor], Tensor]
CubicInit = Literal["per_matrix", "batch", "two_norms"]
# Most steps for which ``pinv_matmul`` applies factors instead of forming the inverse. Their rounding errors in float32,
# for softmax matrices of random scores of standard deviation 1: 3e-6 for 4 steps, 2e-5 for 6, 1e-3 for 10 (relative,
# 64 x 64). For scores of standard deviation 0.01, nearly uniform matrices: 1e-4 for 6 steps.
MAX_FACTORED_STEPS = 6


def __getattr__(name: str) -> Any:
    # Published configurations name the Newton-Raphson inverse by its old path, lra.ops.pinv.newton.
    if name == "newton":
        from .newton import newton

        return newton
    raise AttributeError(f"module {__name__} has no attribute {name}")


@full_precision
def cubic(
    m: Float[Tensor, "*batch c c"],
    *,
    steps: Whole,
    init: CubicInit = "per_matrix",
) -> Float[Tensor, "*batch c c"]:
    """Approximate the pseudo-inverse by the iteration of Nystromformer (Xiong et al. 2021, section 3.3) and CURformer.

        Z_0 = mᵀ / s,   Z_k+1 = Z_k (13 I - m Z_k (15 I - m Z_k (7 I - m Z_k))) / 4

    s is the largest absolute column sum. Theory also divides by the largest row sum, which is 1 for a softmax matrix.
    After few steps Z is a smoothed pseudo-inverse, which stays bounded as singular values vanish.

    Args:
        m: matrices.
        steps: number of steps of the iteration.
        init: ``per_matrix``: s of each matrix. ``batch``: the largest s of the whole tensor, as in the released
            Nystromformer, which makes examples depend on each other. ``two_norms``: s times the largest row sum, for
            matrices whose rows do not sum to one, such as MEGA's Laplace weights: all eigenvalues of m Z_0 then lie in
            [0, 1]. With one norm they may reach the largest row sum; eigenvalues from 3 to 3.47 converge to 3
            instead of 1, and above 4.13 the iteration diverges.

    Returns:
        The inverses, in float32 for 16-bit matrices.
    """
    require_range("steps", steps, Range(0))
    require_choice("init", init, CubicInit)
    shape = m.shape
    m = m.flatten(0, -3) if m.dim() > 2 else m[None]  # (G,c,c)

    # The starting value; a matrix of zeros has zeros as its inverse. If several sums are equal, the gradient flows
    # through one of them.
    tiny = torch.finfo(m.dtype).tiny
    absolute = m.abs()
    column_sums = absolute.sum(-2)  # (G,c)
    largest_column = column_sums.max(-1).values  # (G,)
    s = largest_column.clamp(min=tiny)[:, None, None]  # (G,1,1)
    if init == "batch":
        s = s.max()
    z = m.mT / s
    if init == "two_norms":
        row_sums = absolute.sum(-1)  # (G,c)
        largest_row = row_sums.max(-1).values  # (G,)
        z = z / largest_row.clamp(min=tiny)[:, None, None]

    # With steps=0 the result is the starting value, a scaled transpose.
    if steps:
        z = _Cubic.apply(m, z, steps)
    return z.reshape(shape)


def is_batch_dependent(pinv: Inverse) -> bool:
    """Whether the inverse of one matrix depends on the others: a ``partial`` of ``cubic`` with ``init="batch"``."""
    if isinstance(pinv, partial) and pinv.func is cubic:
        return pinv.keywords.get("init") == "batch"
    return False


def is_unbounded(pinv: Inverse) -> bool:
    """Whether entries of the inverse grow without bound as singular values vanish: ``exact``."""
    function = pinv.func if isinstance(pinv, partial) else pinv
    return function is exact


def cubic_chain(
    m: Float[Tensor, "G c c"],
    z: Float[Tensor, "G c c"],
    steps: int,
    saved: list[Tensor] | None = None,
) -> Float[Tensor, "G c c"]:
    """Iterate from Z_0 by fused multiply-adds.

    Args:
        m: matrices.
        z: Z_0.
        steps: number of steps.
        saved: collects Z, P = m Z and T = P (15 I - P (7 I - P)) of each step for the backward pass.
    """
    for _ in range(steps):
        p = m @ z
        inner = torch.baddbmm(p, p, p, beta=7, alpha=-1)  # 7 P - P²
        t = torch.baddbmm(p, p, inner, beta=15, alpha=-1)  # 15 P - P (7 P - P²)
        if saved is not None:
            saved += [z, p, t]
        z = torch.baddbmm(z, z, t, beta=13 / 4, alpha=-1 / 4)  # (13 Z - Z T) / 4
    return z


def cubic_chain_backward(
    m: Float[Tensor, "G c c"],
    saved: Sequence[Tensor],
    grad: Float[Tensor, "G c c"],
) -> tuple[Float[Tensor, "G c c"], Float[Tensor, "G c c"]]:
    """Compute the gradients of m and of Z_0 from the gradient of the last Z; ``saved`` is from ``cubic_chain``.

    For a product Z = X Y the gradients are dX = dZ Yᵀ and dY = Xᵀ dZ. With Z' = 13/4 Z - 1/4 Z T and
    T = 15 P - 7 P² + P³, P = m Z:

        dT = -1/4 Zᵀ dZ'
        dP = 15 dT - 7 (dT Pᵀ + Pᵀ dT) + dT PᵀPᵀ + Pᵀ dT Pᵀ + PᵀPᵀ dT
           = 15 dT - 7 B + B Pᵀ + Pᵀ A     with A = Pᵀ dT and B = A + dT Pᵀ
        dm = dP Zᵀ,   dZ = 13/4 dZ' - 1/4 dZ' Tᵀ + mᵀ dP
    """
    dm = torch.zeros_like(m)
    for first in reversed(range(0, len(saved), 3)):
        z, p, t = saved[first : first + 3]
        scaled_grad = grad * (-1 / 4)
        dt = z.mT @ scaled_grad
        a = p.mT @ dt
        b = torch.baddbmm(a, dt, p.mT)

        # dP = -7 B + B Pᵀ, then + Pᵀ A, then + 15 dT
        dp = torch.baddbmm(b, b, p.mT, beta=-7)
        dp = dp.baddbmm_(p.mT, a)
        dp = dp.add_(dt, alpha=15)
        dm += dp @ z.mT

        # dZ = 13/4 dZ' - 1/4 dZ' Tᵀ, then + mᵀ dP
        grad = torch.baddbmm(grad, grad, t.mT, beta=13 / 4, alpha=-1 / 4)
        grad = grad.baddbmm_(m.mT, dp)
    return dm, grad


class _Cubic(torch.autograd.Function):
    """``cubic_chain`` with its own backward pass.

    It has as many matrix products as autograd's, and a fifth of its other operations.
    """

    @staticmethod
    def forward(ctx: Any, m: Tensor, z: Tensor, steps: int) -> Tensor:
        needs_gradient = any(ctx.needs_input_grad)
        saved: list[Tensor] = []
        out = cubic_chain(m, z, steps, saved if needs_gradient else None)
        ctx.steps = steps
        ctx.save_for_backward(m, *saved)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        m, *saved = ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False):
            # For second derivatives, repeat the steps under autograd: the saved Z, P and T have no history.
            if torch.is_grad_enabled():
                z = saved[0]
                saved = []
                cubic_chain(m, z, ctx.steps, saved)
            grad_m, grad_z = cubic_chain_backward(m, saved, grad)
        return grad_m, grad_z, None


@full_precision
def exact(m: Float[Tensor, "*batch r c"], *, rtol: float | None = None) -> Float[Tensor, "*batch c r"]:
    """Compute the Moore-Penrose inverse by singular values: the limit of the iterations, for tests and ablations.

    Args:
        m: matrices.
        rtol: singular values up to rtol times the largest one count as zero; None: max(r, c) times the dtype's eps.

    Returns:
        The inverses; NaN for a matrix that is not finite, so that an overflow stops the training, as elsewhere.
    """
    is_finite = m.isfinite().all(-1, keepdim=True)
    is_finite = is_finite.all(-2, keepdim=True)  # (*batch,1,1)
    finite = m.where(is_finite, 0.0)
    inverse = torch.linalg.pinv(finite, rtol=rtol)
    return inverse.where(is_finite, torch.nan)


@full_precision
def tikhonov(m: Float[Tensor, "*batch r c"], *, ridge: float) -> Float[Tensor, "*batch c r"]:
    """Compute Tikhonov's regularised inverse (mᵀ m + (ridge s)² I)⁻¹ mᵀ, s the largest singular value (Tikhonov 1963).

    A singular value σ is inverted to σ / (σ² + (ridge s)²), at most 1 / (2 ridge s).

    Args:
        m: matrices.
        ridge: relative to s, which is a constant in the backward pass.

    Returns:
        The inverses; zeros for a matrix of zeros.
    """
    largest = torch.linalg.matrix_norm(m.detach(), ord=2)  # s
    tiny = torch.finfo(m.dtype).tiny
    damping = (ridge * largest).square()
    damping = damping.clamp(min=tiny)[..., None, None]
    eye = torch.eye(m.shape[-1], dtype=m.dtype, device=m.device)
    damped = m.mT @ m + damping * eye
    return torch.linalg.solve(damped, m.mT)


def pinv_matmul(
    pinv: Inverse,
    m: Float[Tensor, "*batch c c"],
    x: Float[Tensor, "*batch c E"],
) -> Float[Tensor, "*batch c E"]:
    """Compute pinv(m) x in float32 or wider, with autocast off.

    If x has 16 bits and pinv is ``cubic`` with init=per_matrix and 1 to ``MAX_FACTORED_STEPS`` steps, its factors are
    applied to x one after the other, without forming the inverse. With A = m / √s and E_k = I - m Z_k, symmetric
    because Z_0 = mᵀ / s, a step of ``cubic`` is

        Z_k+1 = Z_k g(E_k),   g(E) = (13 I - P (15 I - P (7 I - P))) / 4 with P = I - E
                                   = I + E + E² + E³ / 4
        E_k+1 = I - (I - E_k) g(E_k) = E_k³ (3 I + E_k) / 4,   E_0 = I - A Aᵀ

    so Z x = Aᵀ g(E_0) g(E_1) ... x / √s; the factors are polynomials of E_0, so their order is free. If x has c / 2
    columns, forward and backward pass together need a third fewer multiplications. But E_k is not computed from
    Z_k, so rounding errors grow by up to 13/4 in each step. ``pinv_factors`` has the factors and their gradients.

    Args:
        pinv: pseudo-inverse.
        m: matrices.
        x: right factors.

    Returns:
        The product, in float32 or wider.
    """
    is_half = x.dtype in HALF_TYPES
    with torch.autocast(x.device.type, enabled=False):
        m = upcast(m)
        x = upcast(x)
        steps = _factored_steps(pinv) if is_half else None
        if steps is None:
            return pinv(m) @ x

        # Only this fast path for 16 bits needs the factors and their gradient.
        from .pinv_factors import Factors

        # A = m / √s, s the largest column sum.
        a = m.reshape(-1, *m.shape[-2:])  # (G,c,c)
        tiny = torch.finfo(a.dtype).tiny
        column_sums = a.abs().sum(-2)  # (G,c)
        largest_column = column_sums.max(-1).values
        largest_column = largest_column.clamp(min=tiny)  # (G,)
        inverse_root = largest_column.rsqrt()[:, None, None]  # (G,1,1)
        a = a * inverse_root

        # Z x = Aᵀ g(E_0) g(E_1) ... x / √s.
        y = x.reshape(-1, *x.shape[-2:])  # (G,c,E)
        y = Factors.apply(a, y, steps)
        product = a.mT @ (inverse_root * y)
        return product.view(x.shape)


def _factored_steps(pinv: Inverse) -> int | None:
    """Return the number of steps if ``pinv_matmul`` applies the factors, None if it forms the inverse."""
    if not (isinstance(pinv, partial) and pinv.func is cubic):
        return None
    if pinv.keywords.get("init") not in (None, "per_matrix"):
        return None
    steps = pinv.keywords["steps"]
    return steps if 0 < steps <= MAX_FACTORED_STEPS else None
