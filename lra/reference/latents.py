"""Attention through a few latent vectors: Luna, DBA and FLARE.

One sequence of n tokens. Tokens attend to p latents instead of each other, in O(n p) time.

Sources: Ma et al. 2021 (Luna), section 3.1; Qin et al. 2022 (DBA), in the form of the released time-series code; Puri
et al. 2025 (FLARE).
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor


def attention(
    Q: Float[Tensor, "i r"], K: Float[Tensor, "j r"], V: Float[Tensor, "j d"], heads: int
) -> Float[Tensor, "i d"]:
    """Compute softmax attention; heads lie side by side in the columns, so r and d count all heads together."""
    parts = []
    by_head = zip(Q.chunk(heads, dim=1), K.chunk(heads, dim=1), V.chunk(heads, dim=1), strict=True)
    for q, k, v in by_head:
        scores = q @ k.T / q.shape[1] ** 0.5
        parts.append(scores.softmax(dim=1) @ v)
    return torch.cat(parts, dim=1)


def luna(
    X: Float[Tensor, "n d"],
    P: Float[Tensor, "p d"],
    pack: tuple[Callable, Callable, Callable],
    unpack: tuple[Callable, Callable, Callable],
    heads: int,
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "p d"]]:
    """Pack the tokens into a sequence of p vectors, and unpack it for every token.

    Args:
        X: normalised token vectors.
        P: packed sequence that the layer before returns, normalised; learned in the first layer.
        pack, unpack: linear maps of queries, keys and values in the two attentions; keys and values may be one map.
        heads: number of heads.

    Returns:
        Y = Attn(X, P', P'), before its output projection, and P' = Attn(P, X, X). The layer adds the projected Y to the
        token vectors and P' to the packed sequence, both before their normalisation.
    """
    query, key, value = pack
    packed = attention(query(P), key(X), value(X), heads)  # P'
    query, key, value = unpack
    Y = attention(query(X), key(packed), value(packed), heads)
    return Y, packed


def dba(
    X: Float[Tensor, "n d"],
    P: Float[Tensor, "p d"],
    compress: tuple[Callable, Callable, Callable],
    latent: tuple[Callable, Callable, Callable],
    norm: Callable,
    expand: Callable,
    heads: int,
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "p d"]]:
    """Compress the tokens into latents, let the latents attend to each other, and expand them for every token.

    Z = softmax(P W_1 (X W_2)ᵀ / √(r/H)) X W_3
    O = LN(softmax(Z W_4 (Z W_5)ᵀ / √(r/H)) Z W_6)
    Y = softmax(X W_7) O

    with H heads, which share r columns of W_1, W_2, W_4 and W_5; each softmax is computed per head.

    Args:
        X: normalised token vectors.
        P: latents, the Z of the layer before; learned in the first layer.
        compress: linear maps W_1 and W_2, to r numbers for all heads together, and W_3, to d numbers.
        latent: W_4, W_5 and W_6.
        norm: LN.
        expand: W_7, to p numbers per head: a token weighs the latents without a comparison of queries and keys.
        heads: number of heads.

    Returns:
        Y, before its output projection, and Z.
    """
    query, key, value = compress
    Z = attention(query(P), key(X), value(X), heads)
    query, key, value = latent
    O = norm(attention(query(Z), key(Z), value(Z), heads))
    parts = []
    for scores, o in zip(expand(X).chunk(heads, dim=1), O.chunk(heads, dim=1), strict=True):
        parts.append(scores.softmax(dim=1) @ o)
    return torch.cat(parts, dim=1), Z


def flare(
    K: Float[Tensor, "n d"], V: Float[Tensor, "n e"], latents: Float[Tensor, "p d"], scale: float
) -> Float[Tensor, "n e"]:
    """Encode the tokens of one head into learned latents, and decode the latents for every token.

    Args:
        K, V: keys and values; there are no queries.
        latents: learned latent queries Λ.
        scale: factor of the scores: 1, or 1 / √d on the Text task, as in the released script.
    """
    scores = scale * latents @ K.T  # (p, n)
    Z = scores.softmax(dim=1) @ V  # encode, (p, e)
    return scores.T.softmax(dim=1) @ Z  # decode
