"""CUR attention (CURformer: Francois et al., Machine Learning 114:139, 2025, sections 3 to 6).

One head of one sequence of n tokens: queries Q (n, d), keys K (n, d), values V (n, e), m selected queries and keys.

    I, J = positions of the m selected queries and of the m selected keys                    (1)
    C = f(Q K_Jᵀ / √d)    U = f(Q_I K_Jᵀ / √d)    R = f(Q_I Kᵀ / √d),   f = softmax          (2)
    out = C U⁺ (R V),   U⁺ by the iteration of Nystromformer                                 (3)
    out_I = R V: the selected queries have their exact outputs                               (4)

The numbers are those of this list. Time O(n m (d + e) + m³). MegaCUR (section 9) has the Laplace function as f.
"""

from collections.abc import Callable

import torch
from torch import Tensor

# Pairing: the vectors that score for the selected queries, and those that score for the selected keys.
PAIRINGS = {"separate": ("Q", "K"), "same_k": ("K", "K"), "same_q": ("Q", "Q"), "swapped": ("K", "Q")}


def cubic_pinv(A: Tensor, steps: int = 4) -> Tensor:
    """Approximate A⁺ by Z_j+1 = Z_j (13 I - A Z_j (15 I - A Z_j (7 I - A Z_j))) / 4 from Aᵀ / ‖A‖_1."""
    I = torch.eye(len(A), dtype=A.dtype, device=A.device)
    Z = A.T / A.abs().sum(dim=0).max()
    for _ in range(steps):
        AZ = A @ Z
        Z = Z @ (13 * I - AZ @ (15 * I - AZ @ (7 * I - AZ))) / 4
    return Z


def softmax_weights(Q: Tensor, K: Tensor) -> Tensor:
    """Compute softmax(Q Kᵀ / √d). (i, d), (j, d) -> (i, j)."""
    return (Q @ K.T / Q.shape[1] ** 0.5).softmax(dim=1)


def equal_distances(n: int, m: int) -> Tensor:
    """Select the positions floor(i n / m), the score ``step``."""
    return torch.arange(m) * n // m


def farthest_points(X: Tensor, m: int) -> Tensor:
    """Select the first token, then repeatedly the token farthest from the selected ones (Gonzalez 1985)."""
    selected = [0]
    while len(selected) < m:
        distances = (X[:, None] - X[selected]).square().sum(dim=-1).amin(dim=1)
        distances[selected] = -1
        selected.append(int(distances.argmax()))
    return torch.tensor(selected, device=X.device)


def highest_scores(X: Tensor, m: int, score: str, random: Tensor | None, class_token: bool) -> Tensor:
    """Select the m tokens of X (n, d) with the highest scores; the class token, the first, is always among them."""
    if score == "random" and random is not None:
        scores = random.clone()
    else:
        scores = {"sum": X.sum(dim=1), "abs": X.abs().sum(dim=1), "embed": X[:, 0].clone()}[score]
    if class_token:
        scores[0] = float("inf")
    return scores.topk(m).indices


@torch.no_grad()
def select(
    Q: Tensor,
    K: Tensor,
    m: int,
    score: str,
    *,
    pairing: str = "separate",
    random: tuple = (None, None),
    class_token: bool = False,
) -> tuple[Tensor, Tensor]:
    """Select I and J, step 1.

    Args:
        Q: queries (n, d).
        K: keys (n, d).
        m: number of positions; a sequence with fewer tokens selects all of them.
        score: ``sum`` | ``abs`` | ``embed`` | ``random`` | ``step`` | ``farthest``.
        pairing: key of ``PAIRINGS``.
        random: uniform random numbers (n,) of score=random, for I and for J.
        class_token: whether the first token is always selected.

    Returns:
        I (m,) and J (m,).
    """
    m = min(m, len(Q))
    if score == "step":
        return equal_distances(len(Q), m), equal_distances(len(Q), m)
    indices = []
    for side, name in enumerate(PAIRINGS[pairing]):
        X = Q if name == "Q" else K
        if score == "farthest":
            indices.append(farthest_points(X, m))
        else:
            indices.append(highest_scores(X, m, score, random[side], class_token))
    I, J = indices
    # One set of scored vectors gives one set of positions.
    return (I, I) if pairing.startswith("same") else (I, J)


def attention(
    Q: Tensor, K: Tensor, V: Tensor, Q_I: Tensor, K_J: Tensor, *, f: Callable = softmax_weights, pinv=cubic_pinv
) -> tuple[Tensor, Tensor]:
    """Compute C U⁺ (R V), steps 2 and 3, from selected queries Q_I (m, d) and keys K_J (m, d).

    Returns:
        out (n, e) and R V (m, e). Step 4 is ``out[I] = R V``.
    """
    C = f(Q, K_J)  # (n, m)
    U = f(Q_I, K_J)  # (m, m)
    R = f(Q_I, K)  # (m, n)
    RV = R @ V  # (m, e)
    return C @ (pinv(U) @ RV), RV
