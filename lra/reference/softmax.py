"""Softmax attention (Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3.2).

One head of one sequence of n tokens: queries Q (n, d_k), keys K (n, d_k), values V (n, d_v).

    Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V                                             (equation 1)
"""

import torch
from jaxtyping import Float
from torch import Tensor


def attention(
    Q: Float[Tensor, "n d_k"],
    K: Float[Tensor, "n d_k"],
    V: Float[Tensor, "n d_v"],
    *,
    causal: bool = False,
) -> Float[Tensor, "n d_v"]:
    """Compute softmax attention in O(n² (d_k + d_v)) time and O(n²) memory.

    Args:
        Q, K, V: queries, keys and values.
        causal: whether token i attends to tokens 1 .. i only (section 3.2.3).
    """
    d_k = Q.shape[1]

    # Scaled scores of every query with every key.
    scores = Q @ K.T / d_k**0.5  # (n, n)

    # Illegal connections get a score of -inf, so their weight is zero.
    if causal:
        ones = torch.ones_like(scores, dtype=torch.bool)
        is_future = ones.triu(1)
        scores = scores.masked_fill(is_future, float("-inf"))

    # Each query's weights sum to one.
    weights = scores.softmax(dim=1)  # (n, n)
    return weights @ V


def multi_head_attention(
    X: Float[Tensor, "n d_model"],
    W_Q: list[Float[Tensor, "d_model d_k"]],
    W_K: list[Float[Tensor, "d_model d_k"]],
    W_V: list[Float[Tensor, "d_model d_v"]],
    W_O: Float[Tensor, "concatenated d_model"],
) -> Float[Tensor, "n d_model"]:
    """Concatenate the heads and project them (section 3.2.2).

    Args:
        X: token vectors.
        W_Q, W_K, W_V: one matrix per head each.
        W_O: projects the concatenated heads, heads * d_v features.
    """
    heads = []
    for w_q, w_k, w_v in zip(W_Q, W_K, W_V, strict=True):
        Q = X @ w_q
        K = X @ w_k
        V = X @ w_v
        head = attention(Q, K, V)  # (n, d_v)
        heads.append(head)
    concatenated = torch.cat(heads, dim=1)
    return concatenated @ W_O
