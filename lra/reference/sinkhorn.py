"""Sparse Sinkhorn attention (Tay et al., ICML 2020, section 3).

One head of one sequence of n tokens in blocks: queries Q (n, d), keys K (n, d), values V (n, e).

    S_i = P(Σ_t k_t over the tokens t of block i)        scores of block i for all blocks    (1)
    R = S, normalised by a softmax or by Sinkhorn steps                                      (2)
    K'_i = Σ_j R_ij K_j,   V'_i = Σ_j R_ij V_j           for the blocks K_j, V_j             (3)
    a query of block i attends to [K_i; K'_i], [V_i; V'_i] in one softmax                    (4)

Numbers refer to this list. In the paper P is a network, such as two layers with a ReLU, of the pooled input of the
layer; in the released code of the Long Range Arena it is a linear map with bias of pooled keys, as in (1). That code
does not compute (3): it sums blocks and weights separately, so every K'_i is the sum of all blocks. R is nearly a
permutation in the paper, which sorts blocks; Gumbel noise is left out here and in ``lra/attention/sinkhorn.py``.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def sort_matrix(S: Float[Tensor, "B B"], iterations: int) -> Float[Tensor, "B B"]:
    """Compute R, step 2.

    Args:
        S: scores, divided by the temperature.
        iterations: number of Sinkhorn steps, each of which normalises the rows and then the columns of exp(S). The
            result is nearly doubly stochastic. 0, the released default, is a softmax over each row.
    """
    if iterations == 0:
        return S.softmax(dim=1)
    R = S.exp()
    for _ in range(iterations):
        R = R / R.sum(dim=1, keepdim=True)
        R = R / R.sum(dim=0, keepdim=True)
    return R


def mix_blocks(
    X: Float[Tensor, "n w"], weights: Float[Tensor, "n"], offset: Int[Tensor, "n"]
) -> Float[Tensor, "offsets w"]:
    """Compute K'_i or V'_i, step 3: a weighted sum over blocks, one row for each offset that some token has.

    Args:
        X: keys or values of all tokens.
        weights: R_ij for the block j of each token.
        offset: position of each token inside its block.
    """
    mixed = []
    for o in offset.unique():
        at_offset = offset == o
        mixed.append(weights[at_offset] @ X[at_offset])
    return torch.stack(mixed)


def attention(
    Q: Float[Tensor, "n d"],
    K: Float[Tensor, "n d"],
    V: Float[Tensor, "n e"],
    positions: Int[Tensor, "n"],
    block: int,
    P: Float[Tensor, "d blocks"],
    bias: Float[Tensor, "blocks"],
    *,
    iterations: int = 0,
    temperature: float = 1.0,
) -> Float[Tensor, "n e"]:
    """Compute Sinkhorn attention.

    Args:
        Q, K, V: queries, keys and values.
        positions: positions of the tokens in the sequence; 0 .. n - 1 without padding.
        block: number of positions in a block.
        P, bias: linear map of step 1, with one output for each block of a sequence of maximum length; one map per head.
        iterations: see ``sort_matrix``.
        temperature: divisor of S.
    """
    d = Q.shape[1]
    offset = positions % block
    # Blocks without a token take no part.
    used, number = (positions // block).unique(return_inverse=True)  # (B,), (n,)

    # Steps 1 and 2.
    pooled = torch.stack([K[number == i].sum(dim=0) for i in range(len(used))])  # (B, d)
    S = pooled @ P[:, used] + bias[used]  # (B, B)
    R = sort_matrix(S / temperature, iterations)

    # Steps 3 and 4.
    out = []
    for q, i in zip(Q, number, strict=True):
        own = number == i
        # The weight of each token's block.
        weights = R[i, number]  # (n,)
        keys = torch.cat([K[own], mix_blocks(K, weights, offset)])
        values = torch.cat([V[own], mix_blocks(V, weights, offset)])
        scores = keys @ q / d**0.5
        out.append(scores.softmax(dim=0) @ values)
    return torch.stack(out)
