"""Linear attention with a decay per key channel: GLA, HGRN2, RWKV-6.

    S_t = diag(exp(g_t)) S_(t-1) + k_t v_tᵀ
    o_t = scale q_tᵀ S_t

Source: Yang et al. 2023 (GLA), eq. 3.
"""

import torch


def channel_decay_attention(q, k, v, log_decay, *, scale=None):
    """Compute the recurrence token by token.

    Args:
        q, k: queries and keys (N,H,L,D).
        v: values (N,H,L,E).
        log_decay: g (N,H,L,D), at most 0.
        scale: factor of the queries; None: D^-1/2.

    Returns:
        (N,H,L,E).
    """
    N, H, L, D = q.shape
    if scale is None:
        scale = D**-0.5
    state = q.new_zeros(N, H, D, v.shape[-1])
    outputs = []
    for t in range(L):
        decay = log_decay[:, :, t].exp()[..., None]
        write = k[:, :, t, :, None] * v[:, :, t, None, :]
        state = decay * state + write
        outputs.append(scale * torch.einsum("nhd,nhde->nhe", q[:, :, t], state))
    return torch.stack(outputs, dim=2)


def channel_decay_attention_two_sided(q, k, v, log_decay, *, scale=None):
    """Add the recurrence from the right, which reads its state before the token's own write."""
    if scale is None:
        scale = q.shape[-1] ** -0.5
    forward = channel_decay_attention(q, k, v, log_decay, scale=scale)
    reversed_inputs = [x.flip(2) for x in (q, k, v, log_decay)]
    backward = channel_decay_attention(*reversed_inputs, scale=scale).flip(2)
    # Both directions contain the token itself; count it once.
    own = scale * (q * k).sum(-1, keepdim=True) * v
    return forward + backward - own
