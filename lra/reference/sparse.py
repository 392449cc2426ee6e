"""Softmax attention to some pairs of tokens: local attention, Sparse Transformer, Longformer and BigBird.

One head of one sequence of n tokens: queries Q (n, d), keys K (n, d), values V (n, e).

    out_i = Σ_j exp(q_i·k_j / √d) v_j / Σ_j exp(q_i·k_j / √d)   over the keys j that query i sees

Each mechanism is a function that returns the matrix ``sees`` (n, n), which is True where query i sees key j. Its
argument ``positions`` (n,) holds the tokens' positions in the padded sequence: 0 .. n - 1 if no padding precedes them.

Sources: Tay et al. 2021 (local attention of the Long Range Arena); Child et al. 2019, sections 4.3 and 5.1 (Sparse
Transformer); Beltagy et al. 2020, section 3.1 (Longformer); Zaheer et al. 2020, section 2 (BigBird).
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def attention(
    Q: Float[Tensor, "n d"], K: Float[Tensor, "n d"], V: Float[Tensor, "n e"], sees: Bool[Tensor, "n n"]
) -> Float[Tensor, "n e"]:
    """Compute softmax attention to the keys that each query sees; each sees at least one."""
    d = Q.shape[1]
    scores = Q @ K.T / d**0.5  # (n, n)
    scores = scores.masked_fill(~sees, float("-inf"))
    return scores.softmax(dim=1) @ V


def local(positions: Int[Tensor, "n"], block: int) -> Bool[Tensor, "n n"]:
    """A query sees the tokens of its own block of ``block`` positions."""
    number = positions // block
    return number[:, None] == number


def column(positions: Int[Tensor, "n"], stride: int) -> Bool[Tensor, "n n"]:
    """Query i sees the positions i, i ± stride, ...: a column of the sequence written in rows of ``stride`` positions.

    Local attention in the code of the Long Range Arena has columns, with stride = floor(maximum length / block) + 1.
    """
    residue = positions % stride
    return residue[:, None] == residue


def band(positions: Int[Tensor, "n"], width: int) -> Bool[Tensor, "n n"]:
    """A query sees ``width`` positions, its own included; with an even width, one more after it than before it."""
    distance = positions - positions[:, None]  # j - i
    return (distance >= -((width - 1) // 2)) & (distance <= width // 2)


def no_later(positions: Int[Tensor, "n"]) -> Bool[Tensor, "n n"]:
    """A query sees its own position and earlier ones."""
    return positions <= positions[:, None]


def strided(positions: Int[Tensor, "n"], stride: int, *, causal: bool) -> Bool[Tensor, "n n"]:
    """A query sees a band of ``stride`` positions and a column (Sparse Transformer).

    Merged head of section 5.1. The published form is causal, with the band i - stride .. i. Here the band begins at
    i - stride + 1, and i - stride belongs to the column.
    """
    if causal:
        distance = positions[:, None] - positions  # i - j
        sees = (distance < stride) | column(positions, stride)
        return sees & no_later(positions)
    return band(positions, stride) | column(positions, stride)


def fixed(positions: Int[Tensor, "n"], block: int, summary: int, *, causal: bool) -> Bool[Tensor, "n n"]:
    """A query sees its own block and the summaries of all blocks (Sparse Transformer).

    Args:
        positions: positions of the tokens.
        block: number of positions in a block.
        summary: number c of positions at the end of each block that are summaries. The first position of a block is a
            summary too: the paper's residues are block - c, ..., block, and the last of them is 0 modulo block.
        causal: whether a query sees only its own position and earlier ones, as published.
    """
    offset = positions % block
    is_summary = (offset == 0) | (offset >= block - summary)  # (n,)
    sees = local(positions, block) | is_summary
    return sees & no_later(positions) if causal else sees


def longformer(positions: Int[Tensor, "n"], window: int, global_tokens: int) -> Bool[Tensor, "n n"]:
    """A query sees a band; the first ``global_tokens`` positions see every token, and every token sees them.

    The paper has separate projections for global attention; here Q, K and V are the same for both. Its band has
    window / 2 positions on each side and may be dilated; this one is the band of the Long Range Arena's code.
    """
    is_global = positions < global_tokens
    return band(positions, window) | is_global[:, None] | is_global


def bigbird(
    positions: Int[Tensor, "n"], block: int, window: int, random: int, draw: Float[Tensor, "blocks blocks"]
) -> Bool[Tensor, "n n"]:
    """A query sees the first and the last block, ``window`` blocks around its own, and ``random`` of the others.

    Queries of the first and of the last block see every token.

    Args:
        positions: positions of the tokens.
        block: number of positions in a block.
        window: number of blocks around the query's block, odd, this one included.
        random: maximum number of random blocks.
        draw: a random number for each pair of blocks; block i takes the blocks j with the largest numbers draw[i, j].
            Each head has its own draw, renewed at every call in training and fixed in evaluation.
    """
    number = positions // block
    last = int(number.max())
    sees_block = torch.zeros(last + 1, last + 1, dtype=torch.bool)
    for i in range(last + 1):
        sees_block[i, [0, last]] = True
        first_near = max(0, i - window // 2)
        sees_block[i, first_near : i + window // 2 + 1] = True
        others = (~sees_block[i]).nonzero()[:, 0]
        order = draw[i, others].argsort(descending=True)
        sees_block[i, others[order[:random]]] = True
    sees_block[[0, last]] = True
    return sees_block[number][:, number]
