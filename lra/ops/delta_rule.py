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

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from .blocks import split_blocks
from .chunks import append_reversed, causal_mask, chunk_size
from .precision import full_precision
from .untraced import operator


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
    has_decay = log_decay is not None
    if log_decay is None:
        # All examples and heads share the zeros.
        log_decay = beta.new_zeros(1, 1, beta.shape[2])
    q = q * scale
    if not bidirectional:
        earlier, added = _read_earlier(q, k, v, beta, log_decay, chunk)
        self_scores = (q * k).sum(-1, keepdim=True)
        return earlier + self_scores * added

    # Both directions are one batch: the second half of the examples runs from right to left.
    q_both, k_both, v_both, beta_both = (append_reversed(x, 2) for x in (q, k, v, beta))
    decay_both = append_reversed(log_decay, 2) if has_decay else log_decay
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
    log_decay: Float[Tensor, "#N #H L"],
    chunk: int,
) -> tuple[Float[Tensor, "N H L E"], Float[Tensor, "N H L E"]]:
    """Compute what each token reads from the decayed state before its own write, and the value it adds to the state."""
    length = q.shape[2]
    chunk = chunk_size(chunk, length)
    q, k, v = (split_blocks(x, chunk, 2) for x in (q, k, v))  # (N,H,B,C,·)
    beta = split_blocks(beta, chunk, 2)  # (N,H,B,C)
    g = split_blocks(log_decay, chunk, 2)  # (N,H,B,C), or (1,1,B,C) without a decay

    # Γ_ij = exp(G_i - G_j) for earlier keys j.
    prefix = g.cumsum(-1)  # G
    is_earlier = causal_mask(chunk, q.device, diagonal=False)
    exponents = prefix[..., :, None] - prefix[..., None, :]
    exponents = exponents.masked_fill(~is_earlier, -torch.inf)
    decays = exponents.exp()  # Γ, (N,H,B,C,C) or (1,1,B,C,C)

    # (I + A) [U_v, U_k] = β [V, e^G K] for all chunks. A has a zero diagonal; ``unitriangular`` reads it as ones.
    similarities = k @ k.mT
    coefficients = beta[..., None] * similarities * decays  # A, (N,H,B,C,C)
    decayed_beta = beta * prefix.exp()
    rhs_k = decayed_beta[..., None] * k
    rhs_v = beta[..., None] * v
    rhs = torch.cat([rhs_v, rhs_k], dim=-1)  # (N,H,B,C,E + D)
    solved = torch.linalg.solve_triangular(coefficients, rhs, upper=False, unitriangular=True)
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

    # Queries read the state at the start of their chunk and the earlier writes within it.
    added, start_states = _write_chunks(values, corrections, chunk_decay, keys_to_end)
    read = queries @ start_states + scores @ added
    read = read.flatten(2, 3)
    added = added.flatten(2, 3)
    return read[:, :, :length], added[:, :, :length]


# The loop over chunks and its gradient, operators that torch.compile does not unroll. ``_carry_gradients`` has no
# gradient itself: there are no second derivatives.
@operator("write_chunks")
def _write_chunks(values: Tensor, corrections: Tensor, decay: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Write one chunk after the other, because what a chunk really adds, U = U_v - U_k S, depends on the state.

    Args:
        values: U_v, (N,H,B,C,E).
        corrections: U_k, (N,H,B,C,D).
        decay: factor a of the state over a whole chunk, (N,H,B,1,1), or (1,1,B,1,1) without a decay.
        keys: Kᵀ, each key decayed up to the end of its chunk, (N,H,B,D,C).

    Returns:
        U, (N,H,B,C,E), and the state S at the start of each chunk, (N,H,B,D,E).
    """
    state = values.new_zeros(*values.shape[:2], corrections.shape[-1], values.shape[-1])
    added = []
    states = []
    for chunk in range(values.shape[2]):
        states.append(state)
        chunk_added = values[:, :, chunk] - corrections[:, :, chunk] @ state
        added.append(chunk_added)
        state = decay[:, :, chunk] * state + keys[:, :, chunk] @ chunk_added
    return torch.stack(added, dim=2), torch.stack(states, dim=2)


@_write_chunks.register_fake
def _(values: Tensor, corrections: Tensor, decay: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    added = values.new_empty(values.shape)
    states = values.new_empty(*keys.shape[:-1], values.shape[-1])
    return added, states


@operator("carry_gradients")
def _carry_gradients(
    grad_added: Tensor,
    grad_states: Tensor,
    corrections: Tensor,
    decay: Tensor,
    keys: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute the whole gradient of U, and λ, the whole gradient of the state after each chunk, from last to first.

    dU_b and dS_b are the incoming gradients of chunk b, U_k,b its corrections and W_b the whole gradient of U_b:

        W_b = dU_b + K_b λ_b,    λ_(b-1) = dS_b + a_b λ_b - U_k,bᵀ W_b.
    """
    adjoint = torch.zeros_like(grad_states[:, :, 0])
    grads = []
    adjoints = []
    for chunk in reversed(range(keys.shape[2])):
        adjoints.append(adjoint)
        chunk_grad = grad_added[:, :, chunk] + keys[:, :, chunk].mT @ adjoint
        grads.append(chunk_grad)
        decayed = decay[:, :, chunk] * adjoint
        adjoint = grad_states[:, :, chunk] + decayed - corrections[:, :, chunk].mT @ chunk_grad
    grads.reverse()
    adjoints.reverse()
    return torch.stack(grads, dim=2), torch.stack(adjoints, dim=2)


@_carry_gradients.register_fake
def _(grad_added: Tensor, grad_states: Tensor, *unused: Tensor) -> tuple[Tensor, Tensor]:
    return grad_added.new_empty(grad_added.shape), grad_states.new_empty(grad_states.shape)


def _save_chunks(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    _, corrections, decay, keys = inputs
    ctx.save_for_backward(corrections, decay, keys, *output)


def _write_chunks_backward(ctx: Any, grad_added: Tensor, grad_states: Tensor) -> tuple[Tensor | None, ...]:
    """Compute the gradients of U_v, U_k, a and Kᵀ: W, -W Sᵀ, the sum of λ S, and λ Uᵀ (``_carry_gradients``)."""
    corrections, decay, keys, added, states = ctx.saved_tensors
    grads, adjoints = _carry_gradients(grad_added, grad_states, corrections, decay, keys)
    grad_corrections = -grads @ states.mT
    grad_decay = None
    if ctx.needs_input_grad[2]:
        grad_decay = (adjoints * states).sum_to_size(decay.shape)
    grad_keys = adjoints @ added.mT
    return grads, grad_corrections, grad_decay, grad_keys


_write_chunks.register_autograd(_write_chunks_backward, setup_context=_save_chunks)
