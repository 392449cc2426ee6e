"""S4D, a diagonal state-space model for each channel (Gu, Gupta, Goel and Ré, NeurIPS 2022, sections 3 and 4).

One channel of one sequence, u (L,). The state x has N complex entries in conjugate pairs, of which one half is stored.

    x'(t) = A x(t) + B u(t),   y(t) = C x(t) + D u(t),   A diagonal                          (1)
    zero-order hold:  Ā = exp(Δ A),                    B̄ = (Ā - 1) / A · B                   (2)
    bilinear:         Ā = (1 + Δ A/2) / (1 - Δ A/2),   B̄ = Δ / (1 - Δ A/2) · B               (3)
    x_k = Ā x_k-1 + B̄ u_k,   y_k = 2 Re(C x_k) + D u_k                                       (4)
    K_l = 2 Re Σ_n C_n Ā_n^l B̄_n,   y = K * u + D u                                          (5)

The numbers are those of this list. Steps 4 and 5 give the same y: a recurrence of O(L N) time, and a convolution with a
Vandermonde product, computed by FFT in O(L log L) after O(L N) for the kernel.
"""

import math

import torch
from torch import Tensor


def lin_frequencies(N: int) -> Tensor:
    """Initialise A_n = -1/2 + i π n, S4D-Lin (section 4). Returns A (N/2,)."""
    n = torch.arange(N // 2, dtype=torch.float64)
    return torch.complex(torch.full_like(n, -0.5), math.pi * n)


def inv_frequencies(N: int) -> Tensor:
    """Initialise A_n = -1/2 + i N/π (N / (2n + 1) - 1), S4D-Inv (section 4). Returns A (N/2,)."""
    n = torch.arange(N // 2, dtype=torch.float64)
    return torch.complex(torch.full_like(n, -0.5), N / math.pi * (N / (2 * n + 1) - 1))


def discretise(A: Tensor, B: Tensor, step: Tensor, method: str = "zoh") -> tuple[Tensor, Tensor]:
    """Compute Ā and B̄, step 2 or 3. ``method``: ``zoh`` | ``bilinear``."""
    if method == "zoh":
        A_bar = (step * A).exp()
        return A_bar, (A_bar - 1) / A * B
    denominator = 1 - step * A / 2
    return (1 + step * A / 2) / denominator, step / denominator * B


def kernel(A_bar: Tensor, B_bar: Tensor, C: Tensor, L: int) -> Tensor:
    """Compute the convolution kernel K (L,), step 5, by a Vandermonde matrix of the powers of Ā."""
    powers = A_bar[:, None] ** torch.arange(L)  # (N/2, L)
    return 2 * ((C * B_bar)[:, None] * powers).sum(dim=0).real


def convolve(K: Tensor, u: Tensor) -> Tensor:
    """Compute y_k = Σ_l K_l u_k-l from its definition."""
    y = []
    for k in range(len(u)):
        lags = torch.arange(k + 1)
        y.append((K[lags] * u[k - lags]).sum())
    return torch.stack(y)


def recurrence(A_bar: Tensor, B_bar: Tensor, C: Tensor, u: Tensor) -> Tensor:
    """Compute the same y token by token, step 4 without D."""
    x = torch.zeros_like(A_bar)
    y = []
    for u_k in u:
        x = A_bar * x + B_bar * u_k
        y.append(2 * (C * x).sum().real)
    return torch.stack(y)


def s4d(u: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, step: Tensor, *, method: str = "zoh") -> Tensor:
    """Compute y = K * u + D u of one channel (causal)."""
    A_bar, B_bar = discretise(A, B, step, method)
    return convolve(kernel(A_bar, B_bar, C, len(u)), u) + D * u


def bidirectional_s4d(u: Tensor, A, B, C_forward: Tensor, C_backward: Tensor, D, step, *, method="zoh") -> Tensor:
    """Add a second kernel over the tokens ahead, whose lag 0 is the next token, as in the released code."""
    A_bar, B_bar = discretise(A, B, step, method)
    past = recurrence(A_bar, B_bar, C_forward, u)
    # Reversed sequence: the output of the token before in that order belongs to this one.
    ahead = recurrence(A_bar, B_bar, C_backward, u.flip(0))
    ahead = torch.cat([torch.zeros_like(ahead[:1]), ahead[:-1]]).flip(0)
    return past + ahead + D * u
