"""MEGA, moving average equipped gated attention (Ma et al., ICLR 2023, section 3).

One sequence of n tokens, X (n, d); hidden width v, attention width z; N averages per channel.

    EMA(x)_t = SiLU(y_t + ω x_t),   y_t = γᵀ h_t / √N + the same from the right end          (1)
        h_t = (1 - p sigmoid(α)) h_t-1 + p β x_t,   p = sigmoid(δ)
    V = SiLU(X̂ W_v),   X̂ = norm(X);   u, Z, R, H = split(X' W),   X' = EMA(X̂)                (2)
    Q = κ_q SiLU(Z) + μ_q,   K = κ_k SiLU(Z) + μ_k                                           (3)
    O = f(Q Kᵀ / τ + b_rel) V                                                                (4)
    H' = SiLU(H + (O · SiLU(R)) W_o),   Y = sigmoid(u) H' + (1 - sigmoid(u)) X               (5)
    Y + W_2 SiLU(W_1 norm(Y))                                                                (6)

Numbers refer to this list. f is softmax with τ = √z, or the Laplace function with τ = n, the length of a chunk in
MEGA-chunk. The functions below have no normalisation, no dropout and no step 6. p, α, γ, R and u are letters of the
released code: the paper writes α for p, δ for sigmoid(α), η for γ, γ for SiLU(R) and φ for sigmoid(u).
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

# Parameters of the averages of one direction, and of both.
Averages = Float[Tensor, "d N"]
Both = Float[Tensor, "2 d N"]


def damped_ema(
    x: Float[Tensor, "n d"], delta: Averages, alpha: Averages, beta: Averages, gamma: Averages
) -> Float[Tensor, "n d"]:
    """Run the damped moving averages of every channel from left to right, step 1."""
    p = delta.sigmoid()
    decay = 1 - p * alpha.sigmoid()
    h = torch.zeros_like(decay)
    root_N = math.sqrt(h.shape[1])
    y = []
    for x_t in x:
        h = decay * h + p * beta * x_t[:, None]  # (d, N)
        y_t = (gamma * h).sum(dim=1) / root_N
        y.append(y_t)
    return torch.stack(y)


def ema(
    x: Float[Tensor, "n d"], delta: Both, alpha: Both, beta: Both, gamma: Both, omega: Float[Tensor, "d"]
) -> Float[Tensor, "n d"]:
    """Compute EMA(x), step 1, in both directions."""
    forward = damped_ema(x, delta[0], alpha[0], beta[0], gamma[0])
    backward = damped_ema(x.flip(0), delta[1], alpha[1], beta[1], gamma[1])
    return F.silu(forward + backward.flip(0) + omega * x)


def laplace(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Compute (1 + erf((x - μ) / (σ √2))) / 2 with μ = √(1/2) and σ = √(1/(4π))."""
    mu = math.sqrt(1 / 2)
    sigma = math.sqrt(1 / (4 * math.pi))
    return 0.5 * (1 + torch.erf((x - mu) / (sigma * math.sqrt(2))))


def scores(Q: Float[Tensor, "n z"], K: Float[Tensor, "n z"], f: str, w: Float[Tensor, "_"]) -> Float[Tensor, "n n"]:
    """Compute Q Kᵀ / τ + b_rel, step 4. w has the learned bias of each distance j - i, 2 L_max - 1 in all."""
    n, z = Q.shape
    tau = math.sqrt(z) if f == "softmax" else n
    distance = torch.arange(n)[None, :] - torch.arange(n)[:, None]  # (n, n)
    middle = len(w) // 2
    return Q @ K.T / tau + w[middle + distance]


def weights(S: Float[Tensor, "i j"], f: str) -> Float[Tensor, "i j"]:
    """Apply f to the scores: a softmax over the keys, or the Laplace function of each score."""
    return S.softmax(dim=1) if f == "softmax" else laplace(S)


def attention(
    Q: Float[Tensor, "n z"], K: Float[Tensor, "n z"], V: Float[Tensor, "n v"], f: str, w: Float[Tensor, "_"]
) -> Float[Tensor, "n v"]:
    """Compute step 4."""
    return weights(scores(Q, K, f, w), f) @ V


def gated_attention(
    X: Float[Tensor, "n d"],
    normed: Float[Tensor, "n d"],
    averaged: Float[Tensor, "n d"],
    W_v: Callable,
    W: Callable,
    W_o: Callable,
    kappa: Float[Tensor, "2 z"],
    mu: Float[Tensor, "2 z"],
    *,
    f: str,
    w: Float[Tensor, "_"],
    chunk: int | None = None,
) -> Float[Tensor, "n d"]:
    """Compute steps 2 to 5; ``normed`` is X̂, ``averaged`` X'. MEGA-chunk attends within chunks of ``chunk`` tokens.

    W_v, W and W_o are linear maps with bias: d -> v, d -> d + z + v + d, v -> d.
    """
    # Step 2.
    V = F.silu(W_v(normed))
    widths = [X.shape[1], kappa.shape[1], V.shape[1], X.shape[1]]
    u, Z, R, H = W(averaged).split(widths, dim=1)

    # Step 3.
    Q = kappa[0] * F.silu(Z) + mu[0]
    K = kappa[1] * F.silu(Z) + mu[1]

    # Step 4.
    size = chunk or len(X)
    chunks = zip(Q.split(size), K.split(size), V.split(size), strict=True)
    O = torch.cat([attention(q, k, v, f, w) for q, k, v in chunks])  # (n, v)
    gated = O * F.silu(R)

    # Step 5.
    H_prime = F.silu(H + W_o(gated))
    gate = u.sigmoid()
    return gate * H_prime + (1 - gate) * X
