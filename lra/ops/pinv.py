"""Pseudo-inverses of batches of small square matrices, (..., c, c) -> (..., c, c).

All of them compute in full precision, and gradients flow through the iterations.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor

from ..options import Range, Whole, in_range, one_of
from .precision import full_precision

CubicInit = Literal["per_matrix", "batch", "two_norms"]
NewtonInit = Literal["soft", "paper", "softpp"]
Grad = Literal["implicit", "unroll"]


@full_precision
def cubic(m: Tensor, *, steps: Whole, init: CubicInit = "per_matrix") -> Tensor:
    """Third-order iterative pseudo-inverse of Nystromformer (Xiong et al. 2021, section 3.3) and CURformer.

        Z_0 = mᵀ / s,   Z <- Z (13 I - mZ (15 I - mZ (7 I - mZ))) / 4     ``steps`` times

    s is the largest absolute column sum; the row norm of the theory is left out, since rows of a softmax matrix sum to
    one. After few steps Z is not the pseudo-inverse but a smoothed one, which is bounded even if the true one is not.
    Among equal sums the gradient goes through the first.

    Args:
        m: (...,c,c).
        steps: number of steps of the iteration.
        init: ``per_matrix``, s of each matrix; ``batch``, the largest s of the whole tensor, as in the released
            Nystromformer, which makes one example depend on the others; ``two_norms``, for matrices with other row
            sums, such as MEGA's Laplace weights: the largest column sum times the largest row sum of each matrix, so
            that the eigenvalues of m Z_0 lie in [0, 1]. Without the row sum they reach up to it, and above about 4.4
            the iteration diverges.
    """
    in_range("steps", steps, Range(0))
    one_of("init", init, CubicInit)
    shape, m = m.shape, m.flatten(0, -3) if m.dim() > 2 else m[None]
    tiny = torch.finfo(m.dtype).tiny  # a matrix of zeros has zero as its inverse
    scale = m.abs().sum(-2).max(-1).values.clamp(min=tiny)[:, None, None]
    z = m.mT / (scale.max() if init == "batch" else scale)
    if init == "two_norms":
        z = z / m.abs().sum(-1).max(-1).values.clamp(min=tiny)[:, None, None]
    z = _Cubic.apply(m, z, steps) if steps else z
    return z.reshape(shape)


def mixes_batch(pinv: Callable[[Tensor], Tensor]) -> bool:
    """True if the inverse of one matrix depends on the others: a ``partial`` of ``cubic`` with ``init="batch"``."""
    return isinstance(pinv, partial) and pinv.func is cubic and pinv.keywords.get("init") == "batch"


def unbounded(pinv: Callable[[Tensor], Tensor]) -> bool:
    """True for ``exact``, whose entries grow with the inverse of the smallest singular value."""
    return (pinv.func if isinstance(pinv, partial) else pinv) is exact


def cubic_chain(m: Tensor, z: Tensor, steps: int, kept: list[Tensor] | None = None) -> Tensor:
    """Compute Z after the steps from the initial one, (G,c,c), by fused multiply-adds.

    ``kept`` collects Z, P = m Z and T = P (15 I - P (7 I - P)) of each step.
    """
    for _ in range(steps):
        p = m @ z
        t = torch.baddbmm(p, p, p, beta=7, alpha=-1)
        t = torch.baddbmm(p, p, t, beta=15, alpha=-1)
        if kept is not None:
            kept += z, p, t
        z = torch.baddbmm(z, z, t, beta=13 / 4, alpha=-1 / 4)
    return z


def cubic_chain_backward(m: Tensor, kept: Sequence[Tensor], grad: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the gradients of m and of the initial Z from that of the last one, ``kept`` by ``cubic_chain``.

    For the gradient G of Z' = 13/4 Z - 1/4 Z T,

        dT = -1/4 Zᵀ G,   A = Pᵀ dT,   B = A + dT Pᵀ,   dP = 15 dT - 7 B + B Pᵀ + Pᵀ A
        dm = dP Zᵀ,   dZ = 13/4 G - 1/4 G Tᵀ + mᵀ dP
    """
    dm = torch.zeros_like(m)
    for k in reversed(range(0, len(kept), 3)):
        z, p, t = kept[k : k + 3]
        dt = z.mT @ (grad * (-1 / 4))
        a = p.mT @ dt
        b = torch.baddbmm(a, dt, p.mT)
        dp = torch.baddbmm(b, b, p.mT, beta=-7).baddbmm_(p.mT, a).add_(dt, alpha=15)
        dm += dp @ z.mT
        grad = torch.baddbmm(grad, grad, t.mT, beta=13 / 4, alpha=-1 / 4).baddbmm_(m.mT, dp)
    return dm, grad


class _Cubic(torch.autograd.Function):
    """``cubic_chain`` with a backward of half as many operations as autograd's own."""

    @staticmethod
    def forward(ctx, m, z, steps):
        kept = [] if any(ctx.needs_input_grad) else None
        out = cubic_chain(m, z, steps, kept)
        ctx.steps = steps
        ctx.save_for_backward(m, *kept or ())
        return out

    @staticmethod
    def backward(ctx, grad):
        m, *kept = ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False):
            if torch.is_grad_enabled():  # for second derivatives, since the saved tensors have no history
                z, kept = kept[0], []
                cubic_chain(m, z, ctx.steps, kept)
            return *cubic_chain_backward(m, kept, grad), None


@full_precision
def exact(m: Tensor, *, rtol: float | None = None) -> Tensor:
    """Moore-Penrose inverse by singular values: the limit of the iterations, for tests and ablations.

    Args:
        m: (...,r,c).
        rtol: singular values up to rtol times the largest count as zero; None for those of rounding only.

    Returns:
        (...,c,r), NaN for a matrix that is not finite, so that an overflow ends a training as any other one does.
    """
    finite = m.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    return torch.linalg.pinv(m.where(finite, 0.0), rtol=rtol).where(finite, torch.nan)


@full_precision
def tikhonov(m: Tensor, *, ridge: float) -> Tensor:
    """Tikhonov's regularised inverse (mᵀ m + (ridge s)² I)⁻¹ mᵀ, s the largest singular value (Tikhonov 1963).

    A singular value σ is inverted to σ / (σ² + (ridge s)²), which is at most 1 / (2 ridge s). With ridge=0.1 the error
    against trained softmax attention is that of 4 steps of ``cubic``.

    Args:
        m: (...,r,c).
        ridge: relative to s.

    Returns:
        (...,c,r).
    """
    damping = (ridge * torch.linalg.matrix_norm(m.detach(), ord=2)).square()
    damping = damping.clamp(min=torch.finfo(m.dtype).tiny)[..., None, None]  # a matrix of zeros has zero
    one = torch.eye(m.shape[-1], dtype=m.dtype, device=m.device)
    return torch.linalg.solve(m.mT @ m + damping * one, m.mT)


@full_precision
def newton(
    m: Tensor,
    *,
    steps: Whole,
    init: NewtonInit = "soft",
    ridge: Annotated[float, Range(0)] = 0.0,
    grad: Grad = "implicit",
) -> Tensor:
    """Newton-Raphson inverse of a symmetric positive matrix: SOFT (Lu et al. 2021) and SOFT++ (2022).

        X = m + ridge I,   Y_0 = alpha X,   Y <- 2 Y - Y X Y     ``steps`` times

    It converges for 0 < alpha lambda² < 2. An eigenvalue is inverted if alpha lambda² 2^steps >> 1; smaller ones are
    damped. ``init`` chooses alpha for each matrix, with ||.||_1 the largest column sum:

    ``soft``    alpha = 0.9 * 2 / ||m||_1², as in the released SOFT, together with ridge = 0.01
    ``paper``   alpha = 2 / ||X||_1², halved until ||I - alpha X X||_1 <= 1 (one X is missing in print)
    ``softpp``  the same with 1.01 in place of 1, as in the released SOFT++, which has one alpha for a whole batch

    Only a diagonally dominant X X passes the last two tests, hence at most 10 halvings, as released.

    Args:
        m: (...,c,c).
        steps: number of steps of the iteration.
        init: ``soft`` | ``paper`` | ``softpp``.
        ridge: added to the diagonal.
        grad: ``implicit``, -Yᵀ G Yᵀ, the published backward pass, which is the gradient if the steps have converged;
            ``unroll``, that of the steps.
    """
    in_range("steps", steps, Range(0))
    one_of("init", init, NewtonInit)
    one_of("grad", grad, Grad)
    return (_Newton.apply if grad == "implicit" else _newton)(m, steps, init, ridge)


def _newton(m: Tensor, steps: int, init: str, ridge: float) -> Tensor:
    x = m + ridge * torch.eye(m.shape[-1], dtype=m.dtype, device=m.device)
    if init == "soft":
        alpha = 1.8 / m.abs().sum(-2).max(-1).values ** 2
    else:
        alpha = 2 / x.abs().sum(-2).max(-1).values ** 2
        alpha = alpha * _halvings(x.detach(), alpha.detach(), 1.0 if init == "paper" else 1.01)
    y = (alpha[..., None, None] * x).reshape(-1, *x.shape[-2:])
    for _ in range(steps):
        y = torch.baddbmm(y, y @ x.reshape_as(y), y, beta=2, alpha=-1)
    return y.view_as(x)


def _halvings(x: Tensor, alpha: Tensor, bound: float) -> Tensor:
    """Find the largest power of 1/2, at least 2^-10, with which alpha makes ||I - alpha X X||_1 at most ``bound``.

    x (...,c,c), alpha (...) -> (...).
    """
    square = x @ x
    diagonal = square.diagonal(dim1=-2, dim2=-1)  # (...,c)
    rest = square.abs().sum(-2) - diagonal.abs()
    factor = torch.ones_like(alpha)
    for _ in range(10):
        a = (alpha * factor)[..., None]
        norm = ((1 - a * diagonal).abs() + a * rest).amax(-1)
        factor = torch.where(norm > bound, factor / 2, factor)
    return factor


class _Newton(torch.autograd.Function):
    """``_newton`` with the gradient -Yᵀ G Yᵀ, from d inverse(X) = -Y dX Y; only Y is saved."""

    @staticmethod
    def forward(ctx, m, steps, init, ridge):
        y = _newton(m, steps, init, ridge)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        with torch.autocast(g.device.type, enabled=False):
            return -(y.mT @ g @ y.mT), None, None, None
