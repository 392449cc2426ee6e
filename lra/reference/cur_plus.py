"""CUR+, CUR attention without an inverse: attention to clusters of keys, corrected at selected queries.

One head of one sequence of n tokens: queries Q (n, d), keys K (n, d), values V (n, e); c selected queries I and keys J.

    K̄, V̄, sizes = mean keys, mean values and sizes of c clusters; a key belongs to the nearest selected key (1)
    A = softmax(Q K̄ᵀ / √d + log sizes) V̄        attention to the clusters                    (2)
    B = softmax(Q_I Kᵀ / √d) V                  exact outputs of the selected queries        (3)
    S = softmax(-‖q - q_I‖² / h),   T = S_I     interpolates from selected queries to all    (4)
    out = A + S Σ_(t<5) (1 - T)^t (B - A_I),   then out_I = B if ``copy_rv``                 (5)

Numbers refer to this list; 1 in (5) is the identity matrix, and h is the mean squared distance of a query to the
nearest selected one. The mechanism is this suite's own (docs/cur.md). Its parts: attention to merged tokens (Bolya et
al. 2023), kernel regression (Nadaraya 1964) and smoothing of the remainder (Tukey 1977). With every token selected it
is softmax attention.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

ROUNDS = 5


def squared_distances(X: Float[Tensor, "i d"], Y: Float[Tensor, "j d"]) -> Float[Tensor, "i j"]:
    """Compute ‖x - y‖² for every pair."""
    return (X[:, None] - Y).square().sum(dim=2)


def softmax_attention(
    Q: Float[Tensor, "i d"], K: Float[Tensor, "j d"], V: Float[Tensor, "j e"], bias: Float[Tensor, "j"] | float = 0.0
) -> Float[Tensor, "i e"]:
    """Compute softmax(Q Kᵀ / √d + bias) V."""
    d = Q.shape[1]
    scores = Q @ K.T / d**0.5 + bias
    return scores.softmax(dim=1) @ V


def attention(
    Q: Float[Tensor, "n d"],
    K: Float[Tensor, "n d"],
    V: Float[Tensor, "n e"],
    I: Int[Tensor, "c"],
    J: Int[Tensor, "c"],
    *,
    copy_rv: bool = True,
) -> Float[Tensor, "n e"]:
    """Compute CUR+.

    Args:
        Q, K, V: queries, keys and values.
        I, J: positions of the selected queries and keys, distinct; ``lra.ops.selection`` selects them.
        copy_rv: whether the selected queries keep their exact outputs B, which other files call R v.
    """
    # Step 1. A selected key is in its own cluster, so no cluster is empty if the selected keys differ.
    cluster = squared_distances(K, K[J]).argmin(dim=1)  # (n,)
    members = [cluster == number for number in range(len(J))]
    mean_K = torch.stack([K[member].mean(dim=0) for member in members])  # (c, d)
    mean_V = torch.stack([V[member].mean(dim=0) for member in members])  # (c, e)
    sizes = torch.stack([member.sum() for member in members]).to(K.dtype)

    # Steps 2 and 3.
    A = softmax_attention(Q, mean_K, mean_V, bias=sizes.log())  # (n, e)
    B = softmax_attention(Q[I], K, V)  # (c, e)

    # Step 4.
    distances = squared_distances(Q, Q[I])  # (n, c)
    # h is 0 if every query is selected; T is then the identity.
    h = distances.amin(dim=1).mean().clamp(min=torch.finfo(Q.dtype).tiny)
    S = (-distances / h).softmax(dim=1)
    T = S[I]

    # Step 5.
    remainder = B - A[I]
    correction = remainder
    for _ in range(ROUNDS - 1):
        remainder = remainder - T @ remainder
        correction = correction + remainder
    out = A + S @ correction
    return out.index_copy(0, I, B) if copy_rv else out
