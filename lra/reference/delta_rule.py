"""The delta rule: DeltaNet and Gated DeltaNet.

A write first reads the value v̂_t that the decayed state holds under the key, then moves it towards v_t:

    v̂_t = (exp(g_t) S_(t-1))ᵀ k_t
    S_t = exp(g_t) S_(t-1) + β_t k_t (v_t - v̂_t)ᵀ
    o_t = scale q_tᵀ S_t

which is S_t = exp(g_t) (I - β_t k_t k_tᵀ) S_(t-1) + β_t k_t v_tᵀ. g = 0 gives DeltaNet.

Sources: Yang et al. 2024 (DeltaNet), eq. 3; Yang et al. 2025 (Gated DeltaNet), eq. 10.
"""

import torch


def delta_rule_attention(q, k, v, beta, log_decay=None, *, scale=None, own=True):
    """Compute the recurrence token by token.

    Args:
        q, k: queries and keys (N,H,L,D); keys of unit length.
        v: values (N,H,L,E).
        beta: strength of a write (N,H,L), from 0 to 2.
        log_decay: g (N,H,L), at most 0; None: no decay.
        scale: factor of the queries; None: D^-1/2.
        own: whether a token reads the state after its own write; False: after the decay and before the write.

    Returns:
        (N,H,L,E).
    """
    N, H, L, D = q.shape
    if scale is None:
        scale = D**-0.5
    if log_decay is None:
        log_decay = torch.zeros_like(beta)
    state = q.new_zeros(N, H, D, v.shape[-1])
    outputs = []
    for t in range(L):
        decayed = log_decay[:, :, t].exp()[..., None, None] * state
        stored = torch.einsum("nhd,nhde->nhe", k[:, :, t], decayed)
        change = beta[:, :, t, None] * (v[:, :, t] - stored)
        state = decayed + k[:, :, t, :, None] * change[:, :, None, :]
        read = state if own else decayed
        outputs.append(scale * torch.einsum("nhd,nhde->nhe", q[:, :, t], read))
    return torch.stack(outputs, dim=2)


def delta_rule_attention_two_sided(q, k, v, beta, log_decay=None, *, scale=None):
    """Add the recurrence from the right, which reads its state before the token's own write."""
    if log_decay is None:
        log_decay = torch.zeros_like(beta)
    forward = delta_rule_attention(q, k, v, beta, log_decay, scale=scale)
    reversed_inputs = [x.flip(2) for x in (q, k, v, beta, log_decay)]
    backward = delta_rule_attention(*reversed_inputs, scale=scale, own=False).flip(2)
    return forward + backward
