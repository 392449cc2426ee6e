"""Linear attention with decays, in chunks: one decay per head and token, or one per key channel and token.

One decay per head: RetNet, Mamba-2, Hydra, LION, and causal Based with decay 1. One per key channel: GLA, HGRN2.

With decays per channel the score of query i and key j of a chunk is Σ_d q_id k_jd exp(G_id - G_jd), where G is the
cumulative sum of the logarithmic decays. Written as exp(G_id) exp(-G_jd), the second factor overflows. Instead, for
queries in the right half of a segment and keys in its left half, both factors are taken relative to p, the last
position of the left half:

    exp(G_i - G_j) = exp(G_i - G_p) exp(G_p - G_j),   both at most 1.

So each chunk is halved recursively, and at each level the scores of right queries and left keys are one batched
product. The log2 C levels compute C (C - 1) / 2 scores in all: each pair below the diagonal once.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from .blocks import split_blocks
from .chunks import boundary_states, causal_mask, chunk_size
from .precision import full_precision


@full_precision
def scalar_decay_attention(
    q: Float[Tensor, "N H L D"],
    k: Float[Tensor, "N H L D"],
    v: Float[Tensor, "N H L E"],
    log_decay: Float[Tensor, "N H L"],
    *,
    scale: float | None = None,
    chunk: int = 64,
    bidirectional: bool = False,
    key_decays: bool = False,
) -> Float[Tensor, "N H L E"]:
    """Compute S_t = exp(g_t) S_(t-1) + k_t v_tᵀ and o_t = scale q_tᵀ S_t in float32 at least.

    All exponents are sums of g over consecutive tokens, so at most 0. O(L C (D + E) + L D E) time per head, with
    chunks of C tokens.

    Args:
        q, k, v: queries, keys and values.
        log_decay: g, at most 0. A padded token needs k = 0 or v = 0 to write nothing, and g = 0 to keep the state.
        scale: factor of the queries; None: D^-1/2.
        chunk: C, the tokens of each of the B chunks.
        bidirectional: add the recurrence from the right. Token i reads token j > i with the decays of tokens i to
            j - 1, or i + 1 to j with key_decays. It reads itself once.
        key_decays: token i reads token j < i with the decays of tokens j to i - 1, as in LION, instead of j + 1 to i.

    Returns:
        The outputs.

    Source: Dao and Gu 2024 (Mamba-2), section 6; lra/reference/decay_attention.py is the recurrence token by token.
    """
    length = q.shape[2]
    if scale is None:
        scale = q.shape[-1] ** -0.5
    chunk = chunk_size(chunk, length)
    q = split_blocks(q * scale, chunk, 2)  # (N,H,B,C,D)
    k = split_blocks(k, chunk, 2)
    v = split_blocks(v, chunk, 2)
    g = split_blocks(log_decay, chunk, 2)  # (N,H,B,C)

    # prefix_i is G_i, the log of the decay from the start of the chunk to token i, token i included; before_i: token i
    # excluded.
    prefix = g.cumsum(-1)
    before = prefix - g
    total = prefix[..., -1:]  # (N,H,B,1)
    # The decay between query i and key j is exp(from_left_i - from_left_j) for j <= i and
    # exp(from_right_j - from_right_i) for j > i.
    if key_decays:
        from_left = before
        from_right = prefix
    else:
        from_left = prefix
        from_right = before

    # Exponents of the decay between query i and key j of a chunk. x - y is written as x + (-y), so that autograd sums
    # the gradient of y before it negates it, without another C x C tensor. Masked before exp: the exp of a masked
    # positive exponent may be inf, and its gradient 0 * inf is NaN.
    is_seen = causal_mask(chunk, q.device)
    exponents = from_left[..., :, None] + (-from_left)[..., None, :]  # (N,H,B,C,C)
    if bidirectional:
        exponents_ahead = from_right[..., None, :] + (-from_right)[..., :, None]
        exponents = torch.where(is_seen, exponents, exponents_ahead)
    else:
        exponents = exponents.masked_fill(~is_seen, -torch.inf)

    # Within a chunk: scores times decays.
    scores = q @ k.mT  # (N,H,B,C,C)
    weights = scores * exponents.exp()
    out = weights @ v

    # Between chunks: the state at the start of the chunk, decayed up to each query.
    to_end = (total - from_left).exp()[..., None]
    keys_to_end = k * to_end
    chunk_decay = total.exp()[..., None]
    increments = keys_to_end.mT @ v
    states = boundary_states(chunk_decay, increments)  # (N,H,B,D,E)
    from_start = from_left.exp()[..., None]
    queries = q * from_start
    if bidirectional:
        # The recurrence from the right enters a chunk at its end and leaves it at its start, so keys decay towards the
        # start.
        keys_to_start = k * from_right.exp()[..., None]
        increments = keys_to_start.mT @ v
        states_ahead = boundary_states(chunk_decay, increments, reverse=True)
        from_end = (total - from_right).exp()[..., None]
        # One product with both states.
        queries = torch.cat([queries, q * from_end], dim=-1)
        states = torch.cat([states, states_ahead], dim=-2)
    out = out + queries @ states
    out = out.flatten(2, 3)
    return out[:, :, :length]


@full_precision
def channel_decay_attention(
    q: Float[Tensor, "N H L D"],
    k: Float[Tensor, "N H L D"],
    v: Float[Tensor, "N H L E"],
    log_decay: Float[Tensor, "N H L D"],
    *,
    scale: float | None = None,
    chunk: int = 32,
    bidirectional: bool = False,
) -> Float[Tensor, "N H L E"]:
    """Compute S_t = diag(exp(g_t)) S_(t-1) + k_t v_tᵀ and o_t = scale q_tᵀ S_t in float32 at least.

    Args:
        q, k, v: queries, keys and values.
        log_decay: g, at most 0. A padded token needs k = 0 or v = 0 to write nothing, and g = 0 to keep the state.
        scale: factor of the queries; None: D^-1/2.
        chunk: tokens of a chunk, C, a power of two.
        bidirectional: add the recurrence from the right. Token i reads token j > i with the decays of i to j - 1, and
            itself once.

    Returns:
        The outputs.

    Raises:
        ValueError: chunk is not a power of two.

    Source: Yang et al. 2023 (GLA), section 4; the halving is this suite's. lra/reference/decay_attention.py is
    the recurrence token by token.
    """
    if chunk < 1 or chunk & (chunk - 1):
        raise ValueError(f"chunk must be a power of two, got {chunk}")
    if scale is None:
        scale = q.shape[-1] ** -0.5
    length = q.shape[2]
    # Keep the chunk a power of two for a short sequence too.
    while chunk > 1 and chunk // 2 >= length:
        chunk //= 2
    q = split_blocks(q * scale, chunk, 2)  # (N,H,B,C,D)
    k = split_blocks(k, chunk, 2)
    v = split_blocks(v, chunk, 2)  # (N,H,B,C,E)
    g = split_blocks(log_decay, chunk, 2)

    # prefix_i is G_i, the log of the decay from the start of the chunk to token i, token i included; before_i: token i
    # excluded.
    prefix = g.cumsum(-2)
    before = prefix - g
    total = prefix[..., -1:, :]  # (N,H,B,1,D)

    # Each token reads itself without any decay.
    self_scores = (q * k).sum(-1, keepdim=True)
    out = self_scores * v

    # Between chunks: queries read the state at the start of their chunk.
    chunk_decay = total.exp().mT  # (N,H,B,D,1)
    keys_to_end = k * (total - prefix).exp()
    increments = keys_to_end.mT @ v  # (N,H,B,D,E)
    states = boundary_states(chunk_decay, increments)
    queries = q * prefix.exp()
    out = out + queries @ states

    # The same from the right: queries read the state at the end of their chunk.
    if bidirectional:
        keys_to_start = k * before.exp()
        increments = keys_to_start.mT @ v
        states = boundary_states(chunk_decay, increments, reverse=True)
        queries = q * (total - before).exp()
        out = out + queries @ states

    # Within a chunk: between the halves of segments of 2, 4, ..., C tokens.
    half = 1
    while half < chunk:
        segment_shape = (-1, 2, half)
        halves = [x.unflatten(-2, segment_shape) for x in (q, k, v, prefix, before)]  # (N,H,B,segment,2,half,·)
        read = _between_halves(*halves, bidirectional=bidirectional)
        out = out + read.flatten(-4, -2)
        half *= 2
    return out.flatten(2, 3)[:, :, :length]


def _between_halves(
    q: Float[Tensor, "*segments 2 half D"],
    k: Float[Tensor, "*segments 2 half D"],
    v: Float[Tensor, "*segments 2 half E"],
    prefix: Float[Tensor, "*segments 2 half D"],
    before: Float[Tensor, "*segments 2 half D"],
    *,
    bidirectional: bool,
) -> Float[Tensor, "*segments 2 half E"]:
    """Compute what the right half of each segment reads from the left half and, in both directions, the reverse."""
    q_left, q_right = q.unbind(-3)  # (*segments,half,·)
    k_left, k_right = k.unbind(-3)
    v_left, v_right = v.unbind(-3)
    prefix_left, prefix_right = prefix.unbind(-3)

    # G_p, with p the last position of the left half: exp(G_i - G_j) = exp(G_i - G_p) exp(G_p - G_j).
    middle = prefix_left[..., -1:, :]
    queries = q_right * (prefix_right - middle).exp()
    keys = k_left * (middle - prefix_left).exp()
    right = _read(queries, keys, v_left)
    if bidirectional:
        # Queries of the left half: a decay runs from query i to key j - 1, so it is a difference of ``before``. middle
        # is also ``before`` of the first token on the right.
        before_left, before_right = before.unbind(-3)
        queries = q_left * (middle - before_left).exp()
        keys = k_right * (before_right - middle).exp()
        left = _read(queries, keys, v_right)
    else:
        left = torch.zeros_like(right)
    return torch.stack([left, right], dim=-3)


def _read(
    queries: Float[Tensor, "*segments i D"],
    keys: Float[Tensor, "*segments j D"],
    values: Float[Tensor, "*segments j E"],
) -> Float[Tensor, "*segments i E"]:
    """Compute (queries keysᵀ) values; for a single key, without matrix products, which are slow for 1 x 1 matrices."""
    if keys.shape[-2] == 1:
        scores = (queries * keys).sum(-1, keepdim=True)
        return scores * values
    scores = queries @ keys.mT
    return scores @ values
