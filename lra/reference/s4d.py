"""S4D, a diagonal state-space model for each channel (Gu, Gupta, Goel and Ré, NeurIPS 2022, sections 3 and 4).

One channel of one sequence, u (L,). The state x has N complex entries in conjugate pairs, of which one half is stored.

    x'(t) = A x(t) + B u(t),   y(t) = C x(t) + D u(t),   A diagonal                          (1)
    zero-order hold:  Ā = exp(Δ A),                    B̄ = (Ā - 1) / A · B                   (2)
    bilinear:         Ā = (1 + Δ A/2) / (1 - Δ A/2),   B̄ = Δ / (1 - Δ A/2) · B               (3)
    x_k = Ā x_k-1 + B̄ u_k,   y_k = 2 Re(C x_k) + D u_k                                       (4)
    K_l = 2 Re Σ_n C_n Ā_n^l B̄_n,   y = K * u + D u                                          (5)

Numbers refer to this list. Steps 4 and 5 give the same y: a recurrence of O(L N) time, and a convolution whose kernel
is a Vandermonde product of O(L N) time. An FFT would take O(L log L) for the convolution; this file sums directly.
"""

import math

import torch
from jaxtyping import Complex, Float
from torch import Tensor


def lin_eigenvalues(N: int) -> Complex[Tensor, "half"]:
    """Initialise A_n = -1/2 + i π n for n < N/2, S4D-Lin (section 4)."""
    n = torch.arange(N // 2, dtype=torch.float64)
    real = torch.full_like(n, -0.5)
    return torch.complex(real, math.pi * n)


def inv_eigenvalues(N: int) -> Complex[Tensor, "half"]:
    """Initialise A_n = -1/2 + i N/π (N / (2n + 1) - 1) for n < N/2, S4D-Inv (section 4)."""
    n = torch.arange(N // 2, dtype=torch.float64)
    real = torch.full_like(n, -0.5)
    imag = N / math.pi * (N / (2 * n + 1) - 1)
    return torch.complex(real, imag)


def discretise(
    A: Complex[Tensor, "half"], B: Complex[Tensor, "half"], step: Float[Tensor, "..."], method: str = "zoh"
) -> tuple[Complex[Tensor, "half"], Complex[Tensor, "half"]]:
    """Compute Ā and B̄, step 2 or 3. ``method``: ``zoh`` | ``bilinear``."""
    if method == "zoh":
        A_bar = (step * A).exp()
        B_bar = (A_bar - 1) / A * B
        return A_bar, B_bar
    numerator = 1 + step * A / 2
    denominator = 1 - step * A / 2
    B_bar = step / denominator * B
    return numerator / denominator, B_bar


def kernel(
    A_bar: Complex[Tensor, "half"], B_bar: Complex[Tensor, "half"], C: Complex[Tensor, "half"], L: int
) -> Float[Tensor, "L"]:
    """Compute the convolution kernel K, step 5, by a Vandermonde matrix of the powers of Ā."""
    lags = torch.arange(L)
    powers = A_bar[:, None] ** lags  # (half, L)
    terms = (C * B_bar)[:, None] * powers
    return 2 * terms.sum(dim=0).real


def convolve(K: Float[Tensor, "L"], u: Float[Tensor, "L"]) -> Float[Tensor, "L"]:
    """Compute y_k = Σ_l K_l u_k-l from its definition."""
    y = []
    for k in range(len(u)):
        lags = torch.arange(k + 1)
        products = K[lags] * u[k - lags]
        y.append(products.sum())
    return torch.stack(y)


def recurrence(
    A_bar: Complex[Tensor, "half"],
    B_bar: Complex[Tensor, "half"],
    C: Complex[Tensor, "half"],
    u: Float[Tensor, "L"],
) -> Float[Tensor, "L"]:
    """Compute the same y token by token, step 4 without D."""
    x = torch.zeros_like(A_bar)
    y = []
    for u_k in u:
        x = A_bar * x + B_bar * u_k
        y_k = 2 * (C * x).sum().real
        y.append(y_k)
    return torch.stack(y)


def s4d(
    u: Float[Tensor, "L"],
    A: Complex[Tensor, "half"],
    B: Complex[Tensor, "half"],
    C: Complex[Tensor, "half"],
    D: Float[Tensor, "..."],
    step: Float[Tensor, "..."],
    *,
    method: str = "zoh",
) -> Float[Tensor, "L"]:
    """Compute y = K * u + D u of one channel (causal)."""
    A_bar, B_bar = discretise(A, B, step, method)
    K = kernel(A_bar, B_bar, C, len(u))
    return convolve(K, u) + D * u


def bidirectional_s4d(
    u: Float[Tensor, "L"],
    A: Complex[Tensor, "half"],
    B: Complex[Tensor, "half"],
    C_forward: Complex[Tensor, "half"],
    C_backward: Complex[Tensor, "half"],
    D: Float[Tensor, "..."],
    step: Float[Tensor, "..."],
    *,
    method: str = "zoh",
) -> Float[Tensor, "L"]:
    """Add a second kernel over the tokens ahead, whose lag 0 is the next token, as in the released code."""
    A_bar, B_bar = discretise(A, B, step, method)
    past = recurrence(A_bar, B_bar, C_forward, u)
    # Shift by one token, so that lag 0 of the second kernel is the next token.
    ahead = recurrence(A_bar, B_bar, C_backward, u.flip(0))
    ahead = torch.cat([torch.zeros_like(ahead[:1]), ahead[:-1]])
    return past + ahead.flip(0) + D * u
