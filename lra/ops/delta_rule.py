"""The delta rule, with an optional decay per head and token, in chunks: DeltaNet and Gated DeltaNet.

Let S be the state at the start of a chunk, G the cumulative sum of g within it, Γ_ij = exp(G_i - G_j), and let
u_i = β_i (v_i - v̂_i) be the value that token i really adds. The state is then

    S_i = Σ_(j<=i) Γ_ij k_j u_jᵀ + e^(G_i) S,

and the value that the decayed state S_(i-1) holds under k_i is

    v̂_i = (e^(g_i) S_(i-1))ᵀ k_i = Σ_(j<i) Γ_ij (k_iᵀ k_j) u_j + e^(G_i) Sᵀ k_i.

So the u solve a triangular system:

    (I + A) U = diag(β) V - diag(β e^G) K S,   A_ij = β_i Γ_ij k_iᵀ k_j below the diagonal.

(I + A) U_v = diag(β) V and (I + A) U_k = diag(β e^G) K are solved for all chunks at once. Only U = U_v - U_k S and the
states are sequential.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from .blocks import split_blocks
from .chunks import append_reversed, causal_mask
from .precision import full_precision


@full_precision
def delta_rule_attention(
    q: Float[Tensor, "N H L D"],
    k: Float[Tensor, "N H L D"],
    v: Float[Tensor, "N H L E"],
    beta: Float[Tensor, "N H L"],
    log_decay: Float[Tensor, "N H L"] | None = None,
    *,
    scale: float | None = None,
    chunk: int = 64,
    bidirectional: bool = False,
) -> Float[Tensor, "N H L E"]:
    """Compute S_t = exp(g_t) (I - β_t k_t k_tᵀ) S_(t-1) + β_t k_t v_tᵀ and o_t = scale q_tᵀ S_t in float32 at least.

    Args:
        q, k, v: queries, keys of unit length and values.
        beta: β, from 0 to 2; 0 at padding.
        log_decay: g, at most 0; 0 at padding; None: no decay.
        scale: factor of the queries; None: D^-1/2.
        chunk: tokens of a chunk.
        bidirectional: add the recurrence from the right. There token i reads the state after decay i but before write
            i, so it reads itself once.

    Returns:
        The outputs.

    Source: Yang et al. 2024 (DeltaNet), section 3; Yang et al. 2025 (Gated DeltaNet), section 3.3.
    lra/reference/delta_rule.py is the recurrence token by token.
    """
    if scale is None:
        scale = q.shape[-1] ** -0.5
    if log_decay is None:
        log_decay = torch.zeros_like(beta)
    q = q * scale
    if not bidirectional:
        earlier, added = _read_earlier(q, k, v, beta, log_decay, chunk)
        self_scores = (q * k).sum(-1, keepdim=True)
        return earlier + self_scores * added

    # Both directions are one batch: the second half of the examples runs from right to left.
    q_both, k_both, v_both, beta_both, decay_both = (append_reversed(x, 2) for x in (q, k, v, beta, log_decay))
    earlier, added = _read_earlier(q_both, k_both, v_both, beta_both, decay_both, chunk)
    forward, backward = earlier.chunk(2)
    # A token reads its own write from the left only.
    self_scores = (q * k).sum(-1, keepdim=True)
    self_read = self_scores * added[: len(q)]
    return forward + self_read + backward.flip(2)


def _read_earlier(
    q: Float[Tensor, "N H L D"],
    k: Float[Tensor, "N H L D"],
    v: Float[Tensor, "N H L E"],
    beta: Float[Tensor, "N H L"],
    log_decay: Float[Tensor, "N H L"],
    chunk: int,
) -> tuple[Float[Tensor, "N H L E"], Float[Tensor, "N H L E"]]:
    """Compute what each token reads from the decayed state before its own write, and the value it adds to the state."""
    length = q.shape[2]
    chunk = min(chunk, length)
    q, k, v, beta, g = (split_blocks(x, chunk, 2) for x in (q, k, v, beta, log_decay))  # (N,H,B,C,·), (N,H,B,C)

    # Γ_ij = exp(G_i - G_j) for earlier keys j.
    prefix = g.cumsum(-1)  # G
    is_earlier = causal_mask(chunk, q.device, diagonal=False)
    exponents = prefix[..., :, None] - prefix[..., None, :]
    exponents = exponents.masked_fill(~is_earlier, -torch.inf)
    decays = exponents.exp()  # Γ, (N,H,B,C,C)

    # (I + A) [U_v, U_k] = β [V, e^G K] for all chunks. A has a zero diagonal; ``unitriangular`` reads it as ones.
    similarities = k @ k.mT
    coefficients = beta[..., None] * similarities * decays  # A, (N,H,B,C,C)
    decayed_beta = beta * prefix.exp()
    right_k = decayed_beta[..., None] * k
    right_v = beta[..., None] * v
    right = torch.cat([right_v, right_k], dim=-1)  # (N,H,B,C,E + D)
    solved = torch.linalg.solve_triangular(coefficients, right, upper=False, unitriangular=True)
    widths = [v.shape[-1], k.shape[-1]]
    values, corrections = solved.split(widths, dim=-1)  # U_v, U_k

    # Scores of earlier keys within the chunk.
    scores = (q @ k.mT) * decays

    # Decays from the start of the chunk to each query, and from each key to the end of the chunk.
    from_start = prefix.exp()[..., None]
    queries = q * from_start
    total = prefix[..., -1:]
    to_end = (total - prefix).exp()[..., None]
    keys_to_end = (k * to_end).mT  # (N,H,B,D,C)
    chunk_decay = total.exp()[..., None]

    # Chunks in order: what is really added, U = U_v - U_k S, depends on the state. unbind instead of x[:, :, i], whose
    # gradient would be a zero-filled tensor of all chunks for every i.
    per_chunk = [x.unbind(2) for x in (values, corrections, chunk_decay, keys_to_end)]
    state = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1])  # S, (N,H,D,E)
    states = []
    chunks_added = []
    for chunk_values, chunk_corrections, decay, chunk_keys in zip(*per_chunk, strict=True):
        chunk_added = chunk_values - chunk_corrections @ state
        states.append(state)
        chunks_added.append(chunk_added)
        state = decay * state + chunk_keys @ chunk_added

    # Queries read the state at the start of their chunk and the earlier writes within it.
    added = torch.stack(chunks_added, dim=2)  # U, (N,H,B,C,E)
    start_states = torch.stack(states, dim=2)
    read = queries @ start_states + scores @ added
    read = read.flatten(2, 3)
    added = added.flatten(2, 3)
    return read[:, :, :length], added[:, :, :length]
