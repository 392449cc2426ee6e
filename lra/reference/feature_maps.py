"""Linear attention with other features: RFA, cosFormer, Hedgehog and Based.

One head of one sequence of n tokens: queries Q (n, d), keys K (n, d), values V (n, e).

    out_i = Σ_j w_ij v_j / Σ_j w_ij,   w_ij = φ(q_i)·φ(k_j)

Here every w_ij is computed, in O(n²) time. Linear attention adds up φ(k_j) v_jᵀ over the keys once (linear.py).

Sources: Peng et al. 2021 (RFA), section 3.1; Qin et al. 2022 (cosFormer), section 3.2; Zhang et al. 2024 (Hedgehog),
section 4.2; Arora et al. 2024 (Based), section 4.1.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor


def weighted_mean(weights: Float[Tensor, "n n"], V: Float[Tensor, "n e"], floor: float = 0.0) -> Float[Tensor, "n e"]:
    """Average the values; ``floor`` is a lower bound of the mean weight of a query."""
    denominator = weights.sum(dim=1, keepdim=True).clamp(min=floor * len(V))
    return weights @ V / denominator


def rfa_attention(
    Q: Float[Tensor, "n d"],
    K: Float[Tensor, "n d"],
    V: Float[Tensor, "n e"],
    W: Float[Tensor, "F d"],
    *,
    floor: float = 0.01,
) -> Float[Tensor, "n e"]:
    """Compute RFA: φ(x) = [sin(W x), cos(W x)] / √F, so φ(q)·φ(k) is the mean of cos(w·(q - k)) over the rows w of W.

    The gate of section 3.2 is left out.

    Args:
        Q, K, V: queries, keys and values; q and k are scaled to length 1.
        W: F random vectors: standard normal ones, whose entries are multiplied by a learned scale (d,).
        floor: lower bound of the mean weight, because the weights can be negative. The paper has none. The released
            code has features with the factor 0.1 instead of 1/√F, and divides by the absolute sum of its weights, at
            least 1.
    """
    Q = Q / Q.norm(dim=1, keepdim=True)
    K = K / K.norm(dim=1, keepdim=True)
    phases = (Q[:, None] - K) @ W.T  # (n, n, F)
    return weighted_mean(phases.cos().mean(dim=2), V, floor)


def cosformer_attention(
    Q: Float[Tensor, "n d"],
    K: Float[Tensor, "n d"],
    V: Float[Tensor, "n e"],
    positions: Int[Tensor, "n"],
    length: int,
    *,
    eps: float = 1e-6,
) -> Float[Tensor, "n e"]:
    """Compute cosFormer, w_ij = relu(q_i)·relu(k_j) cos(π (i - j) / 2M) (equation 10).

    Args:
        Q, K, V: queries, keys and values.
        positions: positions i of the tokens in the sequence; 0 .. n - 1 without padding.
        length: M, the maximum length of the layer's sequences, not n. Then |i - j| < M, so no cosine is negative.
        eps: lower bound of the mean weight, because all weights of a query may be 0.
    """
    distance = (positions[:, None] - positions).to(Q.dtype)
    reweighting = torch.cos(math.pi * distance / (2 * length))  # (n, n)
    weights = Q.relu() @ K.relu().T * reweighting
    return weighted_mean(weights, V, eps)


def hedgehog_features(
    X: Float[Tensor, "n d"], W: Float[Tensor, "d d"], b: Float[Tensor, "d"], softmax: str = "halves"
) -> Float[Tensor, "n features"]:
    """Compute Hedgehog's learned φ, 2 d features with y = x W + b.

    The authors' code and the fast layer also bound every feature below by 1e-12.

    Args:
        X: queries or keys.
        W, b: the learned map of one head; queries and keys have separate maps unless they are tied.
        softmax: ``halves``: [softmax(y), softmax(-y)], the authors' code. ``joint``: softmax([2 y, -2 y]), as in
            flash-linear-attention. The paper has [exp(y), exp(-y)].
    """
    Y = X @ W + b
    if softmax == "joint":
        return torch.cat([2 * Y, -2 * Y], dim=1).softmax(dim=1)
    return torch.cat([Y.softmax(dim=1), (-Y).softmax(dim=1)], dim=1)


def feature_attention(
    phi_Q: Float[Tensor, "n features"], phi_K: Float[Tensor, "n features"], V: Float[Tensor, "n e"]
) -> Float[Tensor, "n e"]:
    """Compute the attention from features, such as Hedgehog's."""
    return weighted_mean(phi_Q @ phi_K.T, V)


def based_attention(
    Q: Float[Tensor, "n d"], K: Float[Tensor, "n d"], V: Float[Tensor, "n e"], *, causal: bool = False
) -> Float[Tensor, "n e"]:
    """Compute Based, w_ij = 1 + s + s²/2 with s = q_i·k_j / √d: the Taylor expansion of exp(s), at least ½.

    As features: φ(x) = [1, x / d^¼, all products x_a x_b / √(2 d)]. These are 1 + d + d² numbers, so queries and keys
    are projected to a small d, by default 16. With ``causal``, as published, a token sees itself and earlier tokens.
    """
    d = Q.shape[1]
    scores = Q @ K.T / d**0.5
    weights = 1 + scores + scores.square() / 2
    if causal:
        weights = weights.tril()
    return weighted_mean(weights, V)
