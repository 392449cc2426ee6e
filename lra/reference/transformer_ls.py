"""Long-short transformer, bidirectional (Transformer-LS: Zhu et al., NeurIPS 2021, section 3).

One sequence of n tokens with vectors X (n, d_model), the input of the layer. Q, K, V (n, heads d) are linear maps of X;
they hold the heads side by side, because both normalisations cover all heads.

    K, V = LN_1(K), LN_1(V)                                                                  (1)
    P = softmax over the tokens of X W_p,   (n, rank) for each head: the dynamic projection  (2)
    K' = LN_2(Pᵀ K),   V' = LN_2(Pᵀ V)      rank compressed keys and values                  (3)
    out_i = softmax(q_i [K'; K_near]ᵀ / √d) [V'; V_near]                                     (4)

Numbers refer to this list. ``near`` are the tokens of the segment of ``window`` positions that holds token i, and
max(window // 2, 1) positions before and after it. LN is a layer normalisation.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor


def compress(
    P: Float[Tensor, "n projections"], Y: Float[Tensor, "n width"], heads: int, norm: Callable
) -> Float[Tensor, "rank width"]:
    """Compute LN_2(Pᵀ Y) for Y = K or V with one projection per head, step 3."""
    parts = []
    for p, y in zip(P.chunk(heads, dim=1), Y.chunk(heads, dim=1), strict=True):
        parts.append(p.T @ y)  # (rank, d)
    return norm(torch.cat(parts, dim=1))


def attention(
    Q: Float[Tensor, "n width"],
    K: Float[Tensor, "n width"],
    V: Float[Tensor, "n width"],
    logits: Float[Tensor, "n projections"],
    positions: Int[Tensor, "n"],
    *,
    heads: int,
    window: int,
    norm: Callable,
) -> Float[Tensor, "n width"]:
    """Compute steps 2 to 4.

    Args:
        Q, K, V: queries, keys and values of all heads; keys and values after step 1.
        logits: X W_p of all heads, ``heads`` times ``rank`` projections side by side.
        positions: positions of the tokens in the sequence; 0 .. n - 1 without padding.
        heads: number of heads.
        window: number of positions in a segment.
        norm: LN_2.
    """
    # Steps 2 and 3.
    P = logits.softmax(dim=0)
    long_K = compress(P, K, heads, norm).chunk(heads, dim=1)  # heads times (rank, d)
    long_V = compress(P, V, heads, norm).chunk(heads, dim=1)

    # Step 4.
    reach = max(window // 2, 1)
    out = []
    for i, position in enumerate(positions.tolist()):
        start = position // window * window
        near = (positions >= start - reach) & (positions < start + window + reach)
        by_head = zip(Q[i].chunk(heads), K[near].chunk(heads, dim=1), V[near].chunk(heads, dim=1), strict=True)
        parts = []
        for h, (q, near_K, near_V) in enumerate(by_head):
            keys = torch.cat([long_K[h], near_K])
            values = torch.cat([long_V[h], near_V])
            scores = keys @ q / len(q) ** 0.5
            parts.append(scores.softmax(dim=0) @ values)
        out.append(torch.cat(parts))
    return torch.stack(out)


def convolution(
    V: Float[Tensor, "n width"], positions: Int[Tensor, "n"], filters: Float[Tensor, "heads kernel"], length: int
) -> Float[Tensor, "{length} width"]:
    """Compute the depth-wise convolution of V, after step 1, that may be added to the result, at ``length`` positions.

    Row p belongs to position p, so ``out`` gets the rows at ``positions``. Each head has one filter, whose middle
    belongs to the position itself. Positions without a token hold zeros.
    """
    heads, kernel = filters.shape
    placed = torch.zeros(length, V.shape[1], dtype=V.dtype)
    placed[positions] = V
    # Zeros before the first and after the last position.
    margin = torch.zeros(kernel // 2, V.shape[1], dtype=V.dtype)
    padded = torch.cat([margin, placed, margin])
    parts = []
    for w, x in zip(filters, padded.chunk(heads, dim=1), strict=True):
        parts.append(sum(w[t] * x[t : t + length] for t in range(kernel)))
    return torch.cat(parts, dim=1)
