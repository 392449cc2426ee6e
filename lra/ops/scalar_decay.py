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
        log_decay: g, at most 0; 0 at padding, where k and v must be 0 too.
        scale: factor of the queries; None: D^-1/2.
        chunk: tokens of a chunk, C.
        bidirectional: add the recurrence from the right. Token i reads token j > i with the decays of i to j - 1, and
            itself once.
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

    # prefix_i: log of the decay from the start of the chunk to token i, token i included; before_i: token i excluded.
    prefix = g.cumsum(-1)
    before = prefix - g
    if key_decays:
        # Then a key is decayed by itself and a query is not: the two sums change their places.
        prefix, before = before, prefix
        total = before[..., -1:]  # (N,H,B,1)
    else:
        total = prefix[..., -1:]

    # Exponents of the decay between query i and key j of a chunk; masked before exp, since 0 * inf has no gradient.
    is_seen = causal_mask(chunk, q.device)
    exponents = prefix[..., :, None] + (-prefix)[..., None, :]  # (N,H,B,C,C)
    if bidirectional:
        exponents_ahead = before[..., None, :] + (-before)[..., :, None]
        exponents = torch.where(is_seen, exponents, exponents_ahead)
    else:
        exponents = exponents.masked_fill(~is_seen, -torch.inf)

    # Within a chunk: scores times decays.
    scores = q @ k.mT  # (N,H,B,C,C)
    weights = scores * exponents.exp()
    out = weights @ v

    # Between chunks: the state at the start of the chunk, decayed up to each query.
    to_end = (total - prefix).exp()[..., None]
    keys_to_end = k * to_end
    chunk_decay = total.exp()[..., None]
    increments = keys_to_end.mT @ v
    states = boundary_states(chunk_decay, increments)  # (N,H,B,D,E)
    from_start = prefix.exp()[..., None]
    queries = q * from_start
    if bidirectional:
        # The same from the right: the state at the end of the chunk. A key is decayed by the tokens in front of it.
        keys_to_start = k * before.exp()[..., None]
        increments = keys_to_start.mT @ v
        chunk_decay = total.exp()[..., None]
        states_ahead = boundary_states(chunk_decay, increments, reverse=True)
        from_end = (total - before).exp()[..., None]
        # One product with both states.
        queries = torch.cat([queries, q * from_end], dim=-1)
        states = torch.cat([states, states_ahead], dim=-2)
    out = out + queries @ states
    out = out.flatten(2, 3)
    return out[:, :, :length]
