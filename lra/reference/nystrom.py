"""Nystromformer attention (Xiong et al., "Nyströmformer", AAAI 2021, section 3).

One head of one sequence of n tokens: queries Q (n, d), keys K (n, d), values V (n, e), m landmarks.

    Q̃, K̃ = means of m consecutive segments of Q and of K                                   (1)
    F = softmax(Q K̃ᵀ / √d)    A = softmax(Q̃ K̃ᵀ / √d)    B = softmax(Q̃ Kᵀ / √d)            (2)
    Z_0 = Aᵀ / ‖A‖_1,   Z_(t+1) = Z_t (13 I - A Z_t (15 I - A Z_t (7 I - A Z_t))) / 4        (3)
    out = F (Z (B V)) + convolution of V,   Z the last Z_t                                   (4)

Numbers refer to this list. The paper also divides Z_0 by ‖A‖_∞, which is 1 for a softmax matrix; the released code does
not. ``lra/attention/nystrom.py`` calls F, A and B F₁, F₂ and F₃. Time O(n m (d + e) + m³).
"""

import torch
from jaxtyping import Float
from torch import Tensor


def segment_means(X: Float[Tensor, "n d"], m: int) -> Float[Tensor, "m d"]:
    """Average m consecutive segments, step 1: token i lies in segment floor(i m / n)."""
    n = len(X)
    segment = torch.arange(n) * m // n
    means = []
    for j in range(m):
        tokens = X[segment == j]
        means.append(tokens.mean(dim=0))
    return torch.stack(means)


def iterative_pinv(
    A: Float[Tensor, "m m"],
    steps: int = 6,
    divisor: Float[Tensor, ""] | None = None,
) -> Float[Tensor, "m m"]:
    """Approximate the Moore-Penrose inverse of A, step 3.

    Args:
        A: square matrix.
        steps: number of steps.
        divisor: Z_0 = Aᵀ / divisor; None: ‖A‖_1, the largest column sum.
    """
    I = torch.eye(len(A), dtype=A.dtype, device=A.device)
    if divisor is None:
        column_sums = A.abs().sum(dim=0)
        divisor = column_sums.max()
    Z = A.T / divisor
    for _ in range(steps):
        AZ = A @ Z
        inner = 15 * I - AZ @ (7 * I - AZ)
        Z = Z @ (13 * I - AZ @ inner) / 4
    return Z


def depthwise_convolution(V: Float[Tensor, "n e"], kernel: Float[Tensor, "width"]) -> Float[Tensor, "n e"]:
    """Slide a filter of odd width along the sequence, with zeros outside the sequence, the same in all channels."""
    n = len(V)
    width = len(kernel)
    reach = width // 2
    out = []
    for i in range(n):
        total = torch.zeros_like(V[i])
        for tap in range(width):
            j = i + tap - reach  # the token under this tap
            if 0 <= j < n:
                total = total + kernel[tap] * V[j]
        out.append(total)
    return torch.stack(out)


def attention(
    Q: Float[Tensor, "n d"],
    K: Float[Tensor, "n d"],
    V: Float[Tensor, "n e"],
    *,
    m: int,
    steps: int = 6,
    kernel: Float[Tensor, "width"] | None = None,
) -> Float[Tensor, "n e"]:
    """Compute Nystromformer attention.

    Args:
        Q, K, V: queries, keys and values.
        m: number of landmarks. If the sequence has fewer tokens, every token is a landmark.
        steps: number of steps of the iteration.
        kernel: filter of the depth-wise convolution of V; None leaves the convolution out.
    """
    m = min(m, len(Q))
    scale = Q.shape[1] ** -0.5

    # 1. Landmarks.
    Q_tilde = segment_means(Q, m)  # (m, d)
    K_tilde = segment_means(K, m)  # (m, d)

    # 2. The three softmax matrices.
    F = ((Q @ K_tilde.T) * scale).softmax(dim=1)  # (n, m)
    A = ((Q_tilde @ K_tilde.T) * scale).softmax(dim=1)  # (m, m)
    B = ((Q_tilde @ K.T) * scale).softmax(dim=1)  # (m, n)

    # 3. The approximate pseudo-inverse of A.
    Z = iterative_pinv(A, steps)  # (m, m)

    # 4. Products from right to left never form an n x n matrix.
    BV = B @ V  # (m, e)
    ZBV = Z @ BV
    out = F @ ZBV
    if kernel is not None:
        out = out + depthwise_convolution(V, kernel)
    return out
