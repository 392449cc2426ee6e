"""CUR attention (CURformer: Francois et al., Machine Learning 114:139, 2025, sections 3 to 6).

One head of one sequence of n tokens: queries Q (n, d), keys K (n, d), values V (n, e), m selected queries and keys.

    I, J = positions of the m selected queries and of the m selected keys                    (1)
    C = f(Q, K_J)    U = f(Q_I, K_J)    R = f(Q_I, K),   f(Q, K) = softmax(Q Kᵀ / √d)        (2)
    out = C U⁺ (R V),   U⁺ by the iteration of Nystromformer                                 (3)
    out_I = R V, the output of softmax attention for the selected queries                    (4)

Numbers refer to this list. Time O(n m (d + e) + m³). MegaCUR (section 9): MEGA's f, softmax or laplace (mega.py).
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

# Pairing: the vectors that are scored for I, and those that are scored for J.
PAIRINGS = {"separate": ("Q", "K"), "same_k": ("K", "K"), "same_q": ("Q", "Q"), "swapped": ("K", "Q")}


def cubic_pinv(A: Float[Tensor, "i j"], steps: int = 4) -> Float[Tensor, "j i"]:
    """Approximate A⁺ by Z_0 = Aᵀ / ‖A‖_1 and Z_(t+1) = Z_t (13 - A Z_t (15 - A Z_t (7 - A Z_t))) / 4."""
    eye = torch.eye(len(A), dtype=A.dtype, device=A.device)
    Z = A.T / A.abs().sum(dim=0).max()  # ‖A‖_1 is the largest column sum
    for _ in range(steps):
        AZ = A @ Z
        inner = 15 * eye - AZ @ (7 * eye - AZ)
        Z = Z @ (13 * eye - AZ @ inner) / 4
    return Z


def softmax_weights(Q: Float[Tensor, "i d"], K: Float[Tensor, "j d"]) -> Float[Tensor, "i j"]:
    """Compute softmax(Q Kᵀ / √d)."""
    d = Q.shape[1]
    scores = Q @ K.T / d**0.5
    return scores.softmax(dim=1)


def farthest_points(X: Float[Tensor, "n d"], m: int) -> Int[Tensor, "m"]:
    """Select the first token, then repeatedly the token farthest from the selected ones (Gonzalez 1985)."""
    selected = [0]
    while len(selected) < m:
        squared_distances = (X[:, None] - X[selected]).square().sum(dim=-1)  # (n, selected)
        nearest = squared_distances.amin(dim=1)  # squared distance to the nearest selected token, (n,)
        nearest[selected] = -1  # below every distance: not selected again
        selected.append(int(nearest.argmax()))
    return torch.tensor(selected, device=X.device)


def highest_scores(
    X: Float[Tensor, "n d"], m: int, score: str, random: Float[Tensor, "n"] | None, class_token: bool
) -> Int[Tensor, "m"]:
    """Select the m tokens with the highest scores; with ``class_token`` the first one is always among them."""
    if score == "random":
        assert random is not None
        scores = random.clone()
    else:
        scores = {"sum": X.sum(dim=1), "abs": X.abs().sum(dim=1), "embed": X[:, 0].clone()}[score]
    if class_token:
        scores[0] = float("inf")
    return scores.topk(m).indices


@torch.no_grad()
def select(
    Q: Float[Tensor, "n d"],
    K: Float[Tensor, "n d"],
    m: int,
    score: str,
    *,
    pairing: str = "separate",
    random: Float[Tensor, "2 n"] | tuple[None, None] = (None, None),
    class_token: bool = False,
) -> tuple[Int[Tensor, "selected"], Int[Tensor, "selected"]]:
    """Select I and J, step 1: min(m, n) positions each.

    Args:
        Q, K: queries and keys.
        m: number of positions; a sequence with fewer tokens selects all of them.
        score: ``sum``, ``abs`` and ``embed`` score a token x by Σ x, Σ |x| and x_0, ``random`` by its random number.
            ``farthest`` (see ``farthest_points``) and ``step`` (positions floor(i n / m)) use no scores.
        pairing: key of ``PAIRINGS``; step ignores it.
        random: numbers for score=random; random[0] for I, random[1] for J.
        class_token: whether the first token is always selected; farthest and step always select it.
    """
    m = min(m, len(Q))
    if score == "step":
        strided = torch.arange(m) * len(Q) // m
        return strided, strided
    indices = []
    for side, name in enumerate(PAIRINGS[pairing]):
        X = Q if name == "Q" else K
        if score == "farthest":
            indices.append(farthest_points(X, m))
        else:
            indices.append(highest_scores(X, m, score, random[side], class_token))
    I, J = indices
    # same_k and same_q: J = I. With score=random the numbers for J are then unused.
    return (I, I) if pairing.startswith("same") else (I, J)


def attention(
    Q: Float[Tensor, "queries d"],
    K: Float[Tensor, "n d"],
    V: Float[Tensor, "n e"],
    Q_I: Float[Tensor, "i d"],
    K_J: Float[Tensor, "j d"],
    *,
    f: Callable = softmax_weights,
    pinv: Callable = cubic_pinv,
) -> tuple[Float[Tensor, "queries e"], Float[Tensor, "i e"]]:
    """Compute steps 2 and 3 for some or all queries Q; return out and R V. The caller does step 4: out[I] = R V."""
    C = f(Q, K_J)  # (queries, j)
    U = f(Q_I, K_J)  # (i, j)
    R = f(Q_I, K)  # (i, n)
    RV = R @ V  # (i, e)
    weighted_RV = pinv(U) @ RV  # U⁺ R V, (j, e)
    return C @ weighted_RV, RV
