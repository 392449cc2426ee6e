"""Softmax attention (Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3.2).

One head of one sequence of n tokens: queries Q (n, d_k), keys K (n, d_k), values V (n, d_v).

    Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V                                             (equation 1)
"""

import torch
from torch import Tensor


def attention(Q: Tensor, K: Tensor, V: Tensor, *, causal: bool = False) -> Tensor:
    """Compute softmax attention in O(n² (d_k + d_v)) time and O(n²) memory.

    Args:
        Q: queries (n, d_k).
        K: keys (n, d_k).
        V: values (n, d_v).
        causal: whether token i attends to tokens 1 .. i only (section 3.2.3).

    Returns:
        (n, d_v).
    """
    d_k = Q.shape[1]

    # Scaled scores of every query with every key.
    scores = Q @ K.T / d_k**0.5  # (n, n)

    # Illegal connections get a score of -inf, hence a weight of zero.
    if causal:
        future = torch.ones_like(scores, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, float("-inf"))

    # Each query's weights sum to one.
    weights = scores.softmax(dim=1)  # (n, n)
    return weights @ V


def multi_head_attention(X: Tensor, W_Q: list, W_K: list, W_V: list, W_O: Tensor) -> Tensor:
    """Concatenate the heads and project them (section 3.2.2).

    Args:
        X: token vectors (n, d_model).
        W_Q, W_K: one matrix (d_model, d_k) per head.
        W_V: one matrix (d_model, d_v) per head.
        W_O: (heads * d_v, d_model).

    Returns:
        (n, d_model).
    """
    heads = []
    for w_q, w_k, w_v in zip(W_Q, W_K, W_V, strict=True):
        heads.append(attention(X @ w_q, X @ w_k, X @ w_v))
    return torch.cat(heads, dim=1) @ W_O
