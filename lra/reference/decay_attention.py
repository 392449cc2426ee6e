"""Linear attention with a decay: one per head (RetNet, simple GLA, Mamba-2, LION), or one per key channel (GLA, HGRN2).

    S_t = exp(g_t) S_(t-1) + k_t v_tᵀ        (state, D x E; a g for each of its D rows: diag(exp(g_t)) S_(t-1))
    o_t = scale q_tᵀ S_t                     (output)

RetNet has g = log γ. Mamba-2's state-space duality has q = C, k = B, v = Δ u, g = Δ A and scale = 1. GLA has
exp(g) = α. HGRN2 has exp(g) = f, k = 1 - f and scale = 1. RWKV-6 has GLA's state but a different output.

LION multiplies the decays of tokens j to i - 1; this recurrence multiplies the decays of tokens j + 1 to i. So LION is
this recurrence with g_(t-1) instead of g_t; from the right, with g_(t+1).

Sources: Sun et al. 2023 (RetNet), eq. 6; Dao and Gu 2024 (Mamba-2), section 3; Afzal et al. 2025 (LION), eq. 9; Yang et
al. 2023 (GLA), eq. 3; Qin et al. 2024 (HGRN2), section 3.2.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def decay_attention(
    q: Float[Tensor, "N H L D"],
    k: Float[Tensor, "N H L D"],
    v: Float[Tensor, "N H L E"],
    log_decay: Float[Tensor, "N H L *rows"],
    *,
    scale: float | None = None,
) -> Float[Tensor, "N H L E"]:
    """Compute the recurrence token by token.

    Args:
        q, k, v: queries, keys and values.
        log_decay: g, at most 0, for the whole state (N,H,L) or for each of its rows (N,H,L,D).
        scale: factor of the queries; None: D^-1/2.
    """
    N, H, L, D = q.shape
    if scale is None:
        scale = D**-0.5
    if log_decay.ndim == 3:
        log_decay = log_decay[..., None]  # (N,H,L,1)
    state = q.new_zeros(N, H, D, v.shape[-1])
    outputs = []
    for t in range(L):
        q_t = q[:, :, t]  # (N,H,D)
        k_t = k[:, :, t]
        v_t = v[:, :, t]  # (N,H,E)
        decay = log_decay[:, :, t].exp()[..., None]  # (N,H,1 or D,1)
        write = k_t[..., None] * v_t[:, :, None, :]
        state = decay * state + write
        output = scale * torch.einsum("nhd,nhde->nhe", q_t, state)
        outputs.append(output)
    return torch.stack(outputs, dim=2)


def decay_attention_two_sided(
    q: Float[Tensor, "N H L D"],
    k: Float[Tensor, "N H L D"],
    v: Float[Tensor, "N H L E"],
    log_decay: Float[Tensor, "N H L *rows"],
    *,
    scale: float | None = None,
) -> Float[Tensor, "N H L E"]:
    """Add the recurrence from the right: o_i = scale Σ_j M_ij (q_iᵀ k_j) v_j over all tokens j.

    M_ij is the product of the decays from token j + 1 to token i for j < i, from token i to token j - 1 for j > i, and
    1 for j = i, so that a token reads itself once. With a decay for each row of the state, M_ij is a vector that
    multiplies q_i.
    """
    if scale is None:
        scale = q.shape[-1] ** -0.5
    forward = decay_attention(q, k, v, log_decay, scale=scale)
    reversed_inputs = [x.flip(2) for x in (q, k, v, log_decay)]
    backward = decay_attention(*reversed_inputs, scale=scale)
    # Both directions contain the token itself; count it once.
    scores = (q * k).sum(-1, keepdim=True)
    self_read = scale * scores * v
    return forward + backward.flip(2) - self_read
