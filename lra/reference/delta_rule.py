"""The delta rule: DeltaNet and Gated DeltaNet.

A write first reads the value v̂_t that the decayed state holds under the key, then moves it towards v_t:

    v̂_t = (exp(g_t) S_(t-1))ᵀ k_t
    S_t = exp(g_t) S_(t-1) + β_t k_t (v_t - v̂_t)ᵀ
    o_t = scale q_tᵀ S_t

which is S_t = exp(g_t) (I - β_t k_t k_tᵀ) S_(t-1) + β_t k_t v_tᵀ. g = 0 gives DeltaNet. The papers write the
transpose of S; Gated DeltaNet writes α_t for exp(g_t).

Sources: Yang et al. 2024 (DeltaNet), eq. 3; Yang et al. 2025 (Gated DeltaNet), eq. 10.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def delta_rule_attention(
    q: Float[Tensor, "N H L D"],
    k: Float[Tensor, "N H L D"],
    v: Float[Tensor, "N H L E"],
    beta: Float[Tensor, "N H L"],
    log_decay: Float[Tensor, "N H L"] | None = None,
    *,
    scale: float | None = None,
    reads_write: bool = True,
) -> Float[Tensor, "N H L E"]:
    """Compute the recurrence token by token.

    Args:
        q, k, v: queries, keys of unit length and values.
        beta: strength of a write, from 0 to 2.
        log_decay: g, at most 0; None: no decay.
        scale: factor of the queries; None: D^-1/2.
        reads_write: whether a token reads the state after its own write; False: after the decay and before the write.
    """
    N, H, L, D = q.shape
    if scale is None:
        scale = D**-0.5
    if log_decay is None:
        log_decay = torch.zeros_like(beta)
    state = q.new_zeros(N, H, D, v.shape[-1])
    outputs = []
    for t in range(L):
        q_t = q[:, :, t]  # (N,H,D)
        k_t = k[:, :, t]
        v_t = v[:, :, t]  # (N,H,E)
        beta_t = beta[:, :, t, None]
        decay = log_decay[:, :, t].exp()
        decayed = decay[..., None, None] * state

        # Move the stored value v̂_t towards v_t.
        stored = torch.einsum("nhd,nhde->nhe", k_t, decayed)
        change = beta_t * (v_t - stored)
        state = decayed + k_t[..., None] * change[:, :, None, :]

        read = state if reads_write else decayed
        output = scale * torch.einsum("nhd,nhde->nhe", q_t, read)
        outputs.append(output)
    return torch.stack(outputs, dim=2)


def delta_rule_attention_two_sided(
    q: Float[Tensor, "N H L D"],
    k: Float[Tensor, "N H L D"],
    v: Float[Tensor, "N H L E"],
    beta: Float[Tensor, "N H L"],
    log_decay: Float[Tensor, "N H L"] | None = None,
    *,
    scale: float | None = None,
) -> Float[Tensor, "N H L E"]:
    """Add the recurrence from the right, which reads its state before the token's own write."""
    if log_decay is None:
        log_decay = torch.zeros_like(beta)
    forward = delta_rule_attention(q, k, v, beta, log_decay, scale=scale)
    reversed_inputs = [x.flip(2) for x in (q, k, v, beta, log_decay)]
    backward = delta_rule_attention(*reversed_inputs, scale=scale, reads_write=False)
    return forward + backward.flip(2)
