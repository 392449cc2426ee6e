"""SOFT and SOFT++, attention without softmax (Lu et al., NeurIPS 2021; Lu et al. 2022, arXiv 2207.03341).

One head of one sequence of n tokens. Queries and keys are one projection Q (n, d); V (n, e); m bottleneck tokens.

    Q̃ = m bottleneck tokens of Q                                                             (1)
    P = κ(Q̃, Q)    A = κ(Q̃, Q̃)    κ(x, y) = exp(-‖x - y‖² / (2 √d))                         (2)
    Y_0 = α X,   Y_k+1 = 2 Y_k - Y_k X Y_k,   X = A + ridge I,   A⁺ = the last Y_k           (3)
    SOFT:   out = Pᵀ A⁺ P V                                                                  (4)
    SOFT++: out = Pᵀ D^-½ A⁺ D^-½ P V,   D = diag(row sums of A)                             (5)

Numbers refer to this list. Time O(n m (d + e) + m³). With Y = X⁻¹ and G = ∂L/∂Y the published backward pass of
step 3 is ∂L/∂X = -Yᵀ G Yᵀ, once, from the converged Y.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def gaussian_kernel(X: Float[Tensor, "i d"], Y: Float[Tensor, "j d"]) -> Float[Tensor, "i j"]:
    """Compute κ(x, y) for every pair, step 2."""
    d = X.shape[1]
    differences = X[:, None] - Y[None]  # (i, j, d)
    squared_distances = differences.square().sum(dim=-1)  # (i, j)
    exponents = -squared_distances / (2 * d**0.5)
    return exponents.exp()


def pooled_tokens(Q: Float[Tensor, "n d"], window: int = 4) -> Float[Tensor, "m d"]:
    """Average windows of consecutive tokens, step 1: m = ceil(n / window), the last window may be shorter."""
    windows = Q.split(window)
    means = [tokens.mean(dim=0) for tokens in windows]
    return torch.stack(means)


def one_norm(X: Float[Tensor, "m m"]) -> Float[Tensor, ""]:
    """Compute ‖X‖_1, the largest absolute column sum."""
    column_sums = X.abs().sum(dim=0)
    return column_sums.max()


def initial_scale(A: Float[Tensor, "m m"], X: Float[Tensor, "m m"], init: str) -> Float[Tensor, ""]:
    """Choose α, which must satisfy 0 < α λ² < 2 for every eigenvalue λ of X.

    Args:
        A: the kernel matrix.
        X: A plus the ridge, the matrix to invert.
        init: ``soft``, the released SOFT: 0.9 · 2 / ‖A‖_1². ``paper``: 2 / ‖X‖_1², halved until ‖I - α X X‖_1 <= 1 (the
            paper prints only one X), at most 10 times. ``softpp``: the same with the bound 1.01, as in the released
            SOFT++, which has one α for a whole batch.
    """
    if init == "soft":
        return 0.9 * 2 / one_norm(A) ** 2
    bound = {"paper": 1.0, "softpp": 1.01}[init]
    I = torch.eye(len(X), dtype=X.dtype)
    alpha = 2 / one_norm(X) ** 2
    for _ in range(10):
        remainder = I - alpha * X @ X
        if one_norm(remainder) <= bound:
            break
        alpha = alpha / 2
    return alpha


def newton_inverse(
    A: Float[Tensor, "m m"],
    steps: int = 20,
    init: str = "soft",
    ridge: float = 0.01,
) -> Float[Tensor, "m m"]:
    """Invert a symmetric positive definite matrix by the Newton-Raphson iteration, step 3.

    Args:
        A: kernel matrix.
        steps: number of steps.
        init: rule for α, see ``initial_scale``.
        ridge: added to the diagonal; 0.01 in the released SOFT, 0 in SOFT++.
    """
    I = torch.eye(len(A), dtype=A.dtype)
    X = A + ridge * I
    alpha = initial_scale(A, X, init)
    Y = alpha * X
    for _ in range(steps):
        Y = 2 * Y - Y @ X @ Y
    return Y


def attention(
    Q: Float[Tensor, "n d"],
    V: Float[Tensor, "n e"],
    Q_tilde: Float[Tensor, "m d"],
    *,
    steps: int = 20,
    init: str = "soft",
    ridge: float = 0.01,
) -> Float[Tensor, "n e"]:
    """Compute SOFT attention, steps 2 to 4, from bottleneck tokens Q̃."""
    P = gaussian_kernel(Q_tilde, Q)  # (m, n)
    A = gaussian_kernel(Q_tilde, Q_tilde)  # (m, m)
    A_inverse = newton_inverse(A, steps, init, ridge)  # (m, m)
    PV = P @ V  # (m, e)
    return P.T @ (A_inverse @ PV)


def normalised_attention(
    Q: Float[Tensor, "n d"],
    V: Float[Tensor, "n e"],
    Q_tilde: Float[Tensor, "m d"],
    *,
    steps: int = 20,
    init: str = "softpp",
    ridge: float = 0.0,
) -> Float[Tensor, "n e"]:
    """Compute SOFT++ attention, steps 2, 3 and 5. D^-½ scales the inverse from both sides; A itself is not scaled."""
    P = gaussian_kernel(Q_tilde, Q)  # (m, n)
    A = gaussian_kernel(Q_tilde, Q_tilde)  # (m, m)
    root_D_inverse = torch.diag(A.sum(dim=1) ** -0.5)  # D^-½, (m, m)
    A_inverse = newton_inverse(A, steps, init, ridge)  # (m, m)
    scaled_PV = root_D_inverse @ (P @ V)  # (m, e)
    return P.T @ (root_D_inverse @ (A_inverse @ scaled_PV))
