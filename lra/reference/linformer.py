"""Linformer attention (Wang et al. 2020, arXiv 2006.04768, section 4).

One head of one sequence of n tokens: queries Q (n, d), keys K (n, d), values V (n, e).

    head = softmax(Q (E K)ᵀ / √d) F V                                                        (equation 7)

E and F (k, n) are learned: n keys and values are compressed to k. Time O(n k (d + e)).
"""

from torch import Tensor


def attention(Q: Tensor, K: Tensor, V: Tensor, E: Tensor, F: Tensor) -> Tensor:
    """Compute Linformer attention.

    Args:
        Q: queries (n, d).
        K: keys (n, d).
        V: values (n, e).
        E: compresses the keys, (k, n).
        F: compresses the values, (k, n). The paper also shares E and F, between heads, or with F = E (section 4).

    Returns:
        (n, e).
    """
    d = Q.shape[1]
    compressed_K = E @ K  # (k, d)
    compressed_V = F @ V  # (k, e)
    weights = (Q @ compressed_K.T / d**0.5).softmax(dim=1)  # (n, k)
    return weights @ compressed_V
