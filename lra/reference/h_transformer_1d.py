"""H-Transformer-1D attention (Zhu and Soricut, ACL 2021, section 4).

One head of one sequence of n tokens: queries Q (n, d), keys K (n, d), values V (n, e).

At level l a cell is 2^l positions and a block is a fixed number of cells. Blocks 2 b and 2 b + 1 are siblings. Every
pair of positions i, j belongs to one level: to level 0 if their blocks of that level are equal or siblings, else to the
level at which their blocks are siblings. Its score compares the mean query and the mean key of the cells of that level:

    s_ij = q̄(cell of i)·k̄(cell of j) / √d,   out = softmax(s) V

So a query sees far keys as means over cells that double with the distance. The paper adds up the values of a cell once,
in O(n) time for a fixed block (equations 25 to 28); here every pair has its own score.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def level_of(a: int, b: int) -> int:
    """Compute the level of a pair of positions from the numbers of their blocks at level 0."""
    level = 0
    # Block a of a level lies in block a // 2 of the next one.
    while a // 2 != b // 2:
        a = a // 2
        b = b // 2
        level += 1
    return level


def cell_mean(X: Float[Tensor, "n d"], positions: Int[Tensor, "n"], position: int, level: int) -> Float[Tensor, "d"]:
    """Average the tokens of the cell of a position."""
    size = 2**level
    in_cell = positions // size == position // size
    return X[in_cell].mean(dim=0)


def attention(
    Q: Float[Tensor, "n d"], K: Float[Tensor, "n d"], V: Float[Tensor, "n e"], positions: Int[Tensor, "n"], block: int
) -> Float[Tensor, "n e"]:
    """Compute hierarchical attention.

    Args:
        Q, K, V: queries, keys and values.
        positions: positions of the tokens in the sequence; 0 .. n - 1 without padding.
        block: cells of a block.
    """
    d = Q.shape[1]
    places = positions.tolist()
    out = []
    for i in places:
        scores = []
        for j in places:
            level = level_of(i // block, j // block)
            q = cell_mean(Q, positions, i, level)
            k = cell_mean(K, positions, j, level)
            scores.append(q @ k / d**0.5)
        weights = torch.stack(scores).softmax(dim=0)
        out.append(weights @ V)
    return torch.stack(out)
