"""The Newton-Raphson inverse of SOFT (Lu et al. 2021) and SOFT++ (2022)."""

from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ..options import Range, Whole, require_choice, require_range
from .precision import full_precision

NewtonInit = Literal["soft", "paper", "softpp"]
Grad = Literal["implicit", "unroll"]
MAX_HALVINGS = 10


@full_precision
def newton(
    m: Float[Tensor, "*batch c c"],
    *,
    steps: Whole,
    init: NewtonInit = "soft",
    ridge: Annotated[float, Range(0)] = 0.0,
    grad: Grad = "implicit",
) -> Float[Tensor, "*batch c c"]:
    """Invert symmetric positive definite matrices by the Newton-Raphson iteration.

        X = m + ridge I,   Y_0 = α X,   Y_k+1 = 2 Y_k - Y_k X Y_k

    It converges if 0 < α λ² < 2 for all eigenvalues λ of X. An eigenvalue is inverted if α λ² 2^steps >> 1; smaller
    ones are damped. ``init`` chooses α for each matrix, with ||.||_1 the largest column sum:

    ``soft``    α = 0.9 · 2 / ||m||_1², as in the released SOFT, together with ridge = 0.01
    ``paper``   α = 2 / ||X||_1², halved until ||I - α X X||_1 <= 1 (the paper prints only one X)
    ``softpp``  the same with 1.01 instead of 1, as in the released SOFT++ (there with one α for a whole batch)

    If X X is not diagonally dominant, no α meets the bound 1, and only small α meet 1.01. So there are at most 10
    halvings, as in the released SOFT++.

    Args:
        m: matrices.
        steps: number of steps of the iteration.
        init: ``soft`` | ``paper`` | ``softpp``.
        ridge: added to the diagonal.
        grad: ``implicit``, the published backward pass -Yᵀ G Yᵀ, which is exact once the iteration has converged;
            ``unroll``, the gradient of the steps.
    """
    require_range("steps", steps, Range(0))
    require_choice("init", init, NewtonInit)
    require_choice("grad", grad, Grad)
    if grad == "implicit":
        return _ImplicitNewton.apply(m, steps, init, ridge)
    return _iterate(m, steps, init, ridge)


def _iterate(
    m: Float[Tensor, "*batch c c"],
    steps: int,
    init: NewtonInit,
    ridge: float,
) -> Float[Tensor, "*batch c c"]:
    c = m.shape[-1]
    eye = torch.eye(c, dtype=m.dtype, device=m.device)
    X = m + ridge * eye

    # The starting value Y_0 = α X.
    if init == "soft":
        alpha = 1.8 / _one_norm(m) ** 2
    else:
        bound = 1.0 if init == "paper" else 1.01
        alpha = 2 / _one_norm(X) ** 2
        alpha = alpha * _halving_factor(X.detach(), alpha.detach(), bound)
    Y = alpha[..., None, None] * X
    Y = Y.reshape(-1, c, c)  # (G,c,c)

    # Y <- 2 Y - Y X Y
    for _ in range(steps):
        YX = Y @ X.reshape_as(Y)
        Y = torch.baddbmm(Y, YX, Y, beta=2, alpha=-1)
    return Y.view_as(X)


def _one_norm(m: Float[Tensor, "*batch c c"]) -> Float[Tensor, "*batch"]:
    """Compute the largest absolute column sum of each matrix; among equal ones the gradient goes through the first."""
    column_sums = m.abs().sum(-2)  # (*batch,c)
    return column_sums.max(-1).values


def _halving_factor(
    X: Float[Tensor, "*batch c c"],
    alpha: Float[Tensor, "*batch"],
    bound: float,
) -> Float[Tensor, "*batch"]:
    """Find the largest f of 1, 1/2, ..., 2^-10 with ||I - f α X X||_1 <= bound; 2^-10 if there is none."""
    # The 1-norm of I - a S needs the diagonal and the off-diagonal column sums of S = X X only.
    square = X @ X
    diagonal = square.diagonal(dim1=-2, dim2=-1)  # (*batch,c)
    column_sums = square.abs().sum(-2)
    off_diagonal = column_sums - diagonal.abs()  # (*batch,c)
    factor = torch.ones_like(alpha)
    for _ in range(MAX_HALVINGS):
        scale = (alpha * factor)[..., None]
        on_diagonal = (1 - scale * diagonal).abs()
        norm = (on_diagonal + scale * off_diagonal).amax(-1)
        factor = torch.where(norm > bound, factor / 2, factor)
    return factor


class _ImplicitNewton(torch.autograd.Function):
    """``_iterate`` with the gradient of the true inverse; only Y, the result of ``_iterate``, is saved.

    Y X = I gives dY X + Y dX = 0, so dY = -Y dX Y, and for G = ∂L/∂Y the gradient is ∂L/∂X = -Yᵀ G Yᵀ.
    """

    @staticmethod
    def forward(ctx: Any, m: Tensor, steps: int, init: NewtonInit, ridge: float) -> Tensor:
        Y = _iterate(m, steps, init, ridge)
        ctx.save_for_backward(Y)
        return Y

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, None, None, None]:
        (Y,) = ctx.saved_tensors
        with torch.autocast(G.device.type, enabled=False):
            grad = -(Y.mT @ G @ Y.mT)
        return grad, None, None, None
