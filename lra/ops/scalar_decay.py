"""Linear attention with one decay per head and token, in chunks: RetNet, simple GLA, Mamba-2, LION."""

import torch
from jaxtyping import Float
from torch import Tensor

from .chunks import boundary_states, causal_mask, split_chunks
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

    All exponents are sums of g over consecutive tokens, so at most 0. O(L C (D + E) + L D E) time for each head, with
    chunks of C tokens.

    Args:
        q, k, v: queries, keys and values.
        log_decay: g, at most 0. A padded token needs k = 0 or v = 0 to write nothing, and g = 0 to keep the state.
        scale: factor of the queries; None: D^-1/2.
        chunk: tokens of a chunk, C.
        bidirectional: add the recurrence from the right. Token i reads token j > i with the decays of tokens i to
            j - 1, or i + 1 to j with key_decays. It reads itself once.
        key_decays: whether the decay of key j counts between query i and key j instead of the query's, as in LION.

    Returns:
        The outputs.

    Source: Dao and Gu 2024 (Mamba-2), section 6; lra/reference/retention.py is the recurrence token by token.
    """
    length = q.shape[2]
    if scale is None:
        scale = q.shape[-1] ** -0.5
    chunk = min(chunk, length)
    q = split_chunks(q * scale, chunk, 2)  # (N,H,B,C,D)
    k = split_chunks(k, chunk, 2)
    v = split_chunks(v, chunk, 2)
    g = split_chunks(log_decay, chunk, 2)  # (N,H,B,C)

    # Log decay from the start of the chunk to each token, with and without the token's own decay.
    including = g.cumsum(-1)
    excluding = including - g
    total = including[..., -1:]  # (N,H,B,1)
    # Differences of left are log decays of the recurrence from the left, differences of right those from the right.
    left, right = (excluding, including) if key_decays else (including, excluding)

    # Exponents of the decay between query i and key j of a chunk. a + (-b): the gradient of b is summed before it is
    # negated, without another C x C tensor. Masked before exp: the exp of a masked positive exponent may be inf, and
    # its gradient 0 * inf is NaN.
    is_seen = causal_mask(chunk, q.device)
    exponents = left[..., :, None] + (-left)[..., None, :]  # (N,H,B,C,C)
    if bidirectional:
        exponents_ahead = right[..., None, :] + (-right)[..., :, None]
        exponents = torch.where(is_seen, exponents, exponents_ahead)
    else:
        exponents = exponents.masked_fill(~is_seen, -torch.inf)

    # Within a chunk: scores times decays.
    scores = q @ k.mT  # (N,H,B,C,C)
    weights = scores * exponents.exp()
    out = weights @ v

    # Between chunks: the state at the start of the chunk, decayed up to each query.
    to_end = (total - left).exp()[..., None]
    keys_to_end = k * to_end
    chunk_decay = total.exp()[..., None]
    increments = keys_to_end.mT @ v
    states = boundary_states(chunk_decay, increments)  # (N,H,B,D,E)
    from_start = left.exp()[..., None]
    queries = q * from_start
    if bidirectional:
        # The recurrence from the right enters a chunk at its end and leaves it at its start, so keys decay towards the
        # start.
        keys_to_start = k * right.exp()[..., None]
        increments = keys_to_start.mT @ v
        chunk_decay = total.exp()[..., None]
        states_ahead = boundary_states(chunk_decay, increments, reverse=True)
        from_end = (total - right).exp()[..., None]
        # One product with both states.
        queries = torch.cat([queries, q * from_end], dim=-1)
        states = torch.cat([states, states_ahead], dim=-2)
    out = out + queries @ states
    out = out.flatten(2, 3)
    return out[:, :, :length]
