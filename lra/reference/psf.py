"""PSF attention, a product of sparse factors with Chord links (Khalitov et al., Neural Networks 2022).

One sequence of N tokens, X (N, d). There are no heads, no softmax and no normalisation.

    links of token i: i, i + 1, i + 2, i + 4, ..., i + 2^(K-2)   modulo N                    (1)
    V_0 = g(X)                                                                               (2)
    W_m = sparse matrix with the K numbers f_m(x_i) at the links of row i,   m = 1 .. M      (3)
    V_m = W_m V_m-1   (plus V_0 with residuals),   out = V_M                                 (4)

Numbers refer to this list. g and f_m are MLPs. The paper has K = log2 N links; its code has log2 N + 1, with which
M = log2 N factors connect all pairs of tokens. Time O(N M K) per channel; this file has dense factors, O(N² M).
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor


def chord_offsets(K: int) -> list[int]:
    """List the offsets of the links, step 1: 0, 1, 2, 4, ..., 2^(K-2)."""
    powers = [2**k for k in range(K - 1)]
    return [0, *powers]


def sparse_factor(w: Float[Tensor, "N K"]) -> Float[Tensor, "N N"]:
    """Write a factor as a dense matrix, step 3: W[i, (i + offset_k) mod N] += w[i, k].

    Two links of a short sequence may meet in one column; their numbers then add up.
    """
    N, K = w.shape
    rows = torch.arange(N)
    W = torch.zeros(N, N, dtype=w.dtype)
    for k, offset in enumerate(chord_offsets(K)):
        columns = (rows + offset) % N
        W[rows, columns] += w[:, k]
    return W


def product(
    factors: list[Float[Tensor, "N K"]],
    V_0: Float[Tensor, "N channels"],
    *,
    residuals: bool = False,
) -> Float[Tensor, "N channels"]:
    """Multiply W_M ... W_1 V_0 from right to left, step 4.

    Args:
        factors: the numbers of W_1, ..., W_M.
        V_0: initial values.
        residuals: whether V_0 is added after every factor.
    """
    V = V_0
    for w in factors:
        W = sparse_factor(w)
        V = W @ V
        if residuals:
            V = V + V_0
    return V


def attention(
    X: Float[Tensor, "N d"],
    g: Callable,
    f: list[Callable],
    *,
    residuals: bool = False,
) -> Float[Tensor, "N channels"]:
    """Compute PSF attention of token vectors with MLPs g and f_1, ..., f_M."""
    V_0 = g(X)  # (N, channels)
    factors = [f_m(X) for f_m in f]  # M times (N, K)
    return product(factors, V_0, residuals=residuals)
