"""MEGA, moving average equipped gated attention (Ma et al., ICLR 2023, section 3).

One sequence of n tokens, X (n, d); hidden width v, attention width z; N averages per channel.

    EMA(x)_t = γᵀ h_t / √N + the same from the right end, SiLU(EMA(x) + ω x)                 (1)
        h_t = (1 - p sigmoid(α)) h_t-1 + p β x_t,   p = sigmoid(δ)
    V = SiLU(X̂ W_v),   X̂ = norm(X);   u, Z, R, H = split(X' W),   X' = EMA(X̂)                (2)
    Q = κ_q SiLU(Z) + μ_q,   K = κ_k SiLU(Z) + μ_k                                           (3)
    O = f(Q Kᵀ / τ + b_rel) V                                                                (4)
    H' = SiLU(H + (O · SiLU(R)) W_o),   Y = sigmoid(u) H' + (1 - sigmoid(u)) X               (5)
    Y + W_2 SiLU(W_1 norm(Y))                                                                (6)

The numbers are those of this list. f is softmax with τ = √z, or the Laplace function with τ = n.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def damped_ema(x: Tensor, delta: Tensor, alpha: Tensor, beta: Tensor, gamma: Tensor) -> Tensor:
    """Run the damped moving averages of every channel from left to right, step 1. x (n, d), the others (d, N)."""
    p = delta.sigmoid()
    decay = 1 - p * alpha.sigmoid()
    h = torch.zeros_like(decay)
    y = []
    for x_t in x:
        h = decay * h + p * beta * x_t[:, None]  # (d, N)
        y.append((gamma * h).sum(dim=1) / math.sqrt(h.shape[1]))
    return torch.stack(y)


def ema(x: Tensor, delta: Tensor, alpha: Tensor, beta: Tensor, gamma: Tensor, omega: Tensor) -> Tensor:
    """Compute SiLU(EMA(x) + ω x) in both directions. x (n, d), omega (d,), the others (2, d, N)."""
    forward = damped_ema(x, delta[0], alpha[0], beta[0], gamma[0])
    backward = damped_ema(x.flip(0), delta[1], alpha[1], beta[1], gamma[1]).flip(0)
    return F.silu(forward + backward + omega * x)


def laplace(x: Tensor) -> Tensor:
    """Compute (1 + erf((x - μ) / (σ √2))) / 2 with μ = √(1/2) and σ = √(1/(4π))."""
    mu = math.sqrt(1 / 2)
    sigma = math.sqrt(1 / (4 * math.pi))
    return 0.5 * (1 + torch.erf((x - mu) / (sigma * math.sqrt(2))))


def scores(Q: Tensor, K: Tensor, f: str, w: Tensor) -> Tensor:
    """Compute Q Kᵀ / τ + b_rel, step 4. w (2 L_max - 1,) is the learned bias of each distance j - i."""
    n, z = Q.shape
    tau = math.sqrt(z) if f == "softmax" else n
    distance = torch.arange(n)[None, :] - torch.arange(n)[:, None]  # (n, n)
    middle = len(w) // 2
    return Q @ K.T / tau + w[middle + distance]


def weights(S: Tensor, f: str) -> Tensor:
    """Apply f to the scores: a softmax over the keys, or the Laplace function of each score."""
    return S.softmax(dim=1) if f == "softmax" else laplace(S)


def attention(Q: Tensor, K: Tensor, V: Tensor, f: str, w: Tensor) -> Tensor:
    """Compute step 4. Q, K (n, z), V (n, v) -> (n, v)."""
    return weights(scores(Q, K, f, w), f) @ V


def gated_attention(
    X: Tensor, normed: Tensor, averaged: Tensor, W_v: Callable, W: Callable, W_o: Callable, kappa: Tensor, mu: Tensor,
    *, f: str, w: Tensor, chunk: int | None = None,
) -> Tensor:  # fmt: skip
    """Compute steps 2 to 5.

    Args:
        X: (n, d).
        normed: X̂ (n, d).
        averaged: X' (n, d).
        W_v, W, W_o: linear maps with bias: d -> v, d -> d + z + v + d, v -> d.
        kappa, mu: scales and shifts (2, z) of queries and of keys.
        f: ``softmax`` | ``laplace``.
        w: bias of each distance.
        chunk: attention within consecutive chunks of so many tokens (MEGA-chunk); None for none.
    """
    V = F.silu(W_v(normed))
    d, z, v = X.shape[1], kappa.shape[1], V.shape[1]
    u, Z, R, H = W(averaged).split([d, z, v, d], dim=1)
    Q = kappa[0] * F.silu(Z) + mu[0]
    K = kappa[1] * F.silu(Z) + mu[1]
    size = chunk or len(X)
    pieces = zip(Q.split(size), K.split(size), V.split(size), strict=True)
    O = torch.cat([attention(q, k, values, f, w) for q, k, values in pieces])  # (n, v)
    H_hat = F.silu(H + W_o(O * F.silu(R)))
    gate = u.sigmoid()
    return gate * H_hat + (1 - gate) * X
