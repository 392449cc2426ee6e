"""Nystromformer attention (Xiong et al., "Nyströmformer", AAAI 2021, section 3).

One head of one sequence of n tokens: queries Q (n, d), keys K (n, d), values V (n, e), m landmarks.

    Q̃, K̃ = means of m consecutive segments of Q and of K                                   (1)
    F = softmax(Q K̃ᵀ / √d)    A = softmax(Q̃ K̃ᵀ / √d)    B = softmax(Q̃ Kᵀ / √d)            (2)
    Z_0 = Aᵀ / (‖A‖_1 ‖A‖_∞),   Z_j+1 = Z_j (13 I - A Z_j (15 I - A Z_j (7 I - A Z_j))) / 4  (3)
    out = F Z* B V + convolution of V                                                        (4)

The numbers are those of this list. Time O(n m (d + e) + m³).
"""

import torch
from torch import Tensor


def segment_means(X: Tensor, m: int) -> Tensor:
    """Average m consecutive segments, step 1: token i lies in segment floor(i m / n). (n, d) -> (m, d)."""
    n = len(X)
    segment = torch.arange(n) * m // n
    means = []
    for j in range(m):
        means.append(X[segment == j].mean(dim=0))
    return torch.stack(means)


def iterative_pinv(A: Tensor, steps: int = 6, start: Tensor | None = None) -> Tensor:
    """Approximate the Moore-Penrose inverse by a third-order iteration, step 3. (m, m) -> (m, m).

    Args:
        A: square matrix.
        steps: number of steps.
        start: divisor of Aᵀ in Z_0. None: ‖A‖_1, the largest column sum; the released code also leaves out ‖A‖_∞,
            which is 1 because the rows of a softmax matrix sum to one.
    """
    I = torch.eye(len(A), dtype=A.dtype)
    if start is None:
        start = A.abs().sum(dim=0).max()
    Z = A.T / start
    for _ in range(steps):
        AZ = A @ Z
        Z = Z @ (13 * I - AZ @ (15 * I - AZ @ (7 * I - AZ))) / 4
    return Z


def depthwise_convolution(V: Tensor, kernel: Tensor) -> Tensor:
    """Slide a filter of odd width along the sequence, zero outside it, one filter for all channels of the head.

    Args:
        V: values (n, e).
        kernel: filter (width,).
    """
    n, width = len(V), len(kernel)
    reach = width // 2
    out = []
    for i in range(n):
        total = torch.zeros_like(V[i])
        for tap in range(width):
            j = i + tap - reach
            if 0 <= j < n:
                total = total + kernel[tap] * V[j]
        out.append(total)
    return torch.stack(out)


def attention(Q: Tensor, K: Tensor, V: Tensor, *, m: int, steps: int = 6, kernel: Tensor | None = None) -> Tensor:
    """Compute Nystromformer attention.

    Args:
        Q: queries (n, d).
        K: keys (n, d).
        V: values (n, e).
        m: number of landmarks; a sequence with fewer tokens uses each token as a landmark.
        steps: number of steps of the iteration.
        kernel: filter of the depth-wise convolution of V; None leaves the convolution out.

    Returns:
        (n, e).
    """
    m = min(m, len(Q))
    scale = Q.shape[1] ** -0.5

    # 1. Landmarks.
    Q_tilde = segment_means(Q, m)  # (m, d)
    K_tilde = segment_means(K, m)  # (m, d)

    # 2. The three softmax matrices.
    F = (Q @ K_tilde.T * scale).softmax(dim=1)  # (n, m)
    A = (Q_tilde @ K_tilde.T * scale).softmax(dim=1)  # (m, m)
    B = (Q_tilde @ K.T * scale).softmax(dim=1)  # (m, n)

    # 3. The approximate pseudo-inverse of A.
    Z = iterative_pinv(A, steps)  # (m, m)

    # 4. Products from right to left never form an n x n matrix.
    out = F @ (Z @ (B @ V))
    if kernel is not None:
        out = out + depthwise_convolution(V, kernel)
    return out
