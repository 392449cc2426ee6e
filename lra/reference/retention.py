"""Linear attention with one decay per head: RetNet, simple GLA, Mamba-2's state-space duality, LION.

    S_t = exp(g_t) S_(t-1) + k_t v_tᵀ        (state, D x E)
    o_t = scale q_tᵀ S_t                     (output)

Sources: Sun et al. 2023 (RetNet), eq. 6; Dao and Gu 2024 (Mamba-2), section 3; Afzal et al. 2025 (LION), eq. 9.
"""

import torch


def scalar_decay_attention(q, k, v, log_decay, *, scale=None):
    """Compute the recurrence token by token.

    Args:
        q, k: queries and keys (N,H,L,D).
        v: values (N,H,L,E).
        log_decay: g (N,H,L), at most 0.
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
        decay = log_decay[:, :, t].exp()[..., None, None]
        write = k[:, :, t, :, None] * v[:, :, t, None, :]
        state = decay * state + write
        outputs.append(scale * torch.einsum("nhd,nhde->nhe", q[:, :, t], state))
    return torch.stack(outputs, dim=2)


def scalar_decay_attention_two_sided(q, k, v, log_decay, *, scale=None):
    """Add the recurrence from the right: o_i = scale Σ_j M_ij (q_iᵀ k_j) v_j over all tokens j.

    M_ij is the product of the decays from token j + 1 to token i for j < i, from token i to token j - 1 for j > i, and
    1 for j = i, so that a token reads itself once.
    """
    if scale is None:
        scale = q.shape[-1] ** -0.5
    forward = scalar_decay_attention(q, k, v, log_decay, scale=scale)
    reversed_inputs = [x.flip(2) for x in (q, k, v, log_decay)]
    backward = scalar_decay_attention(*reversed_inputs, scale=scale).flip(2)
    own = scale * (q * k).sum(-1, keepdim=True) * v
    return forward + backward - own
