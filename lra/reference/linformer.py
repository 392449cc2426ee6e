"""Linformer attention (Wang et al. 2020, arXiv 2006.04768, section 4).

One head of one sequence of n tokens: queries Q (n, d), keys K (n, d), values V (n, e).

    head = softmax(Q (E K)ᵀ / √d) F V                                                        (equation 7)

E and F (k, n) are learned: n keys and values are compressed to k. Time O(n k (d + e)).
"""

from jaxtyping import Float
from torch import Tensor


def attention(
    Q: Float[Tensor, "n d"],
    K: Float[Tensor, "n d"],
    V: Float[Tensor, "n e"],
    E: Float[Tensor, "k n"],
    F: Float[Tensor, "k n"],
) -> Float[Tensor, "n e"]:
    """Compute Linformer attention.

    Args:
        Q, K, V: queries, keys and values.
        E: compresses the keys.
        F: compresses the values. The paper also shares E and F between heads, or sets F = E (section 4).
    """
    d = Q.shape[1]
    # n keys and values are compressed to k.
    compressed_K = E @ K  # (k, d)
    compressed_V = F @ V  # (k, e)

    # Softmax attention to the compressed keys.
    scores = Q @ compressed_K.T / d**0.5  # (n, k)
    weights = scores.softmax(dim=1)
    return weights @ compressed_V
