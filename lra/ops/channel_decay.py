"""Linear attention with a decay per key channel and token, in chunks: GLA, HGRN2.

Within a chunk the score of query i and key j is Σ_d q_id k_jd exp(G_id - G_jd), where G is the cumulative sum of the
logarithmic decays. As a product exp(G_id) exp(-G_jd) its second factor overflows. For queries of the right half and
keys of the left half of a segment, both refer to the last position p of the left half:

    exp(G_i - G_j) = exp(G_i - G_p) exp(G_p - G_j),   both at most 1.

So the chunk is halved again and again, and at each level the scores of right queries and left keys are one batched
product. The log2 C levels have C (C - 1) / 2 scores in all: each pair below the diagonal once.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from .chunks import boundary_states, split_chunks
from .precision import full_precision


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

    Source: Yang et al. 2023 (GLA), section 4; the halving is this suite's. lra/reference/gated_linear_attention.py is
    the recurrence token by token.
    """
    if chunk < 1 or chunk & (chunk - 1):
        raise ValueError(f"chunk must be a power of two, got {chunk}")
    if scale is None:
        scale = q.shape[-1] ** -0.5
    length = q.shape[2]
    smallest_power = 1 << (length - 1).bit_length()
    chunk = min(chunk, smallest_power)
    q = split_chunks(q * scale, chunk, 2)  # (N,H,B,C,D)
    k = split_chunks(k, chunk, 2)
    v = split_chunks(v, chunk, 2)  # (N,H,B,C,E)
    g = split_chunks(log_decay, chunk, 2)

    # prefix_i: log of the decay from the start of the chunk to token i, token i included; before_i: token i excluded.
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
