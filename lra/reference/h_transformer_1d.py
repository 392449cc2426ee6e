"""H-Transformer-1D attention (Zhu and Soricut, ACL 2021, section 6).

One head of one sequence of n tokens: queries Q (n, d), keys K (n, d), values V (n, e).

At level l a cell is 2^l positions and a block is a fixed number of cells. Every pair of positions i, j belongs to one
level: the first one at which their blocks are equal or adjacent (the authors' code, google/flaxformer), or equal or
siblings, blocks 2 b and 2 b + 1 (lucidrains' code, with which other papers measured it). The score of the pair compares
the mean query and the mean key of the cells of that level:

    s_ij = q̄(cell of i)·k̄(cell of j) / √d,   out = softmax(s) V

So a query sees far keys as means. With adjacent blocks the cells grow with the distance; with siblings even the
adjacent positions n / 2 - 1 and n / 2 meet at the coarsest level only. The paper adds up the values of a cell once, in
O(n) time for a fixed block (equations 25 to 28); here every pair has its own score.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def are_near(a: int, b: int, neighbours: str) -> bool:
    """Return whether two blocks of a level are equal or adjacent, or with ``sibling`` equal or siblings."""
    if neighbours == "sibling":
        return a // 2 == b // 2
    return abs(a - b) <= 1


def level_of(a: int, b: int, neighbours: str) -> int:
    """Compute the level of a pair of positions from the numbers of their blocks at level 0."""
    level = 0
    while not are_near(a, b, neighbours):
        # Block a of a level lies in block a // 2 of the next one.
        a = a // 2
        b = b // 2
        level += 1
    return level


def cell_means(X: Float[Tensor, "n d"], positions: Int[Tensor, "n"], level: int) -> Float[Tensor, "n d"]:
    """Replace each token by the mean of the tokens of its cell."""
    cell = positions // 2**level
    same_cell = (cell[:, None] == cell).to(X.dtype)  # (n, n)
    return same_cell @ X / same_cell.sum(dim=1, keepdim=True)


def attention(
    Q: Float[Tensor, "n d"],
    K: Float[Tensor, "n d"],
    V: Float[Tensor, "n e"],
    positions: Int[Tensor, "n"],
    block: int,
    neighbours: str,
) -> Float[Tensor, "n e"]:
    """Compute hierarchical attention.

    Args:
        Q, K, V: queries, keys and values.
        positions: positions of the tokens in the sequence; 0 .. n - 1 without padding.
        block: number of cells in a block, the same at every level.
        neighbours: ``both`` for adjacent blocks (attn=h_transformer_1d_original), ``sibling`` for sibling blocks
            (attn=h_transformer_1d).
    """
    d = Q.shape[1]
    blocks = (positions // block).tolist()
    levels = torch.zeros(len(blocks), len(blocks), dtype=torch.int64)  # (n, n)
    for i, a in enumerate(blocks):
        for j, b in enumerate(blocks):
            levels[i, j] = level_of(a, b, neighbours)
    scores = torch.zeros_like(levels, dtype=Q.dtype)
    for level in range(int(levels.max()) + 1):
        mean_Q = cell_means(Q, positions, level)
        mean_K = cell_means(K, positions, level)
        scores = torch.where(levels == level, mean_Q @ mean_K.T / d**0.5, scores)
    return scores.softmax(dim=1) @ V
