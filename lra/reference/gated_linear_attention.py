"""Linear attention with a decay per key channel: GLA, HGRN2. RWKV-6 has the same state but a different output.

    S_t = diag(exp(g_t)) S_(t-1) + k_t v_tᵀ
    o_t = scale q_tᵀ S_t

GLA has exp(g) = α. HGRN2 has exp(g) = f, k = 1 - f and scale = 1.

Sources: Yang et al. 2023 (GLA), eq. 3; Qin et al. 2024 (HGRN2), section 3.2.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def channel_decay_attention(
    q: Float[Tensor, "N H L D"],
    k: Float[Tensor, "N H L D"],
    v: Float[Tensor, "N H L E"],
    log_decay: Float[Tensor, "N H L D"],
    *,
    scale: float | None = None,
) -> Float[Tensor, "N H L E"]:
    """Compute the recurrence token by token.

    Args:
        q, k, v: queries, keys and values.
        log_decay: g, at most 0.
        scale: factor of the queries; None: D^-1/2.
    """
    N, H, L, D = q.shape
    if scale is None:
        scale = D**-0.5
    state = q.new_zeros(N, H, D, v.shape[-1])
    outputs = []
    for t in range(L):
        q_t = q[:, :, t]  # (N,H,D)
        k_t = k[:, :, t]
        v_t = v[:, :, t]  # (N,H,E)
        decay = log_decay[:, :, t].exp()[..., None]
        write = k_t[..., None] * v_t[:, :, None, :]
        state = decay * state + write
        output = scale * torch.einsum("nhd,nhde->nhe", q_t, state)
        outputs.append(output)
    return torch.stack(outputs, dim=2)


def channel_decay_attention_two_sided(
    q: Float[Tensor, "N H L D"],
    k: Float[Tensor, "N H L D"],
    v: Float[Tensor, "N H L E"],
    log_decay: Float[Tensor, "N H L D"],
    *,
    scale: float | None = None,
) -> Float[Tensor, "N H L E"]:
    """Add the recurrence from the right; a token's own write, which both directions contain, is counted once."""
    if scale is None:
        scale = q.shape[-1] ** -0.5
    forward = channel_decay_attention(q, k, v, log_decay, scale=scale)
    reversed_inputs = [x.flip(2) for x in (q, k, v, log_decay)]
    backward = channel_decay_attention(*reversed_inputs, scale=scale)
    # Both directions contain the token itself; count it once.
    scores = (q * k).sum(-1, keepdim=True)
    self_read = scale * scores * v
    return forward + backward.flip(2) - self_read
