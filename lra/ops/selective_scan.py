"""Mamba's selective scan: a diagonal state of n numbers for each of d channels, whose decay depends on the token."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from .chunks import append_reversed
from .diagonal_recurrence import scan
from .precision import full_precision
from .untraced import untraced

# The forward pass stores the state before each block, and the backward pass recomputes the others block by block.
# With blocks of 32 tokens that is O(d n (L / 32 + 32)) memory instead of O(d n L).
BLOCK = 32
# On a GPU, where every step of Python is a kernel launch, blocks are longer, if the states of a block then have at most
# this many entries (256 MB in float32).
GPU_STATES = 2**26
# On a CPU the batch is scanned in groups whose states of a block have at most this many entries (4 MB in float32). They
# stay in the cache and malloc reuses their memory: 0.5 s instead of 1.4 s for 128 sequences of 64 tokens, d = 128,
# n = 16.
CPU_STATES = 2**20


@full_precision
def selective_scan(
    u: Float[Tensor, "N L d"],
    delta: Float[Tensor, "N L d"],
    A: Float[Tensor, "d n"],
    B: Float[Tensor, "N L n"],
    C: Float[Tensor, "N L n"],
    *,
    bidirectional: bool = False,
) -> Float[Tensor, "N L d"]:
    """Compute h_t = exp(Δ_t A) h_(t-1) + Δ_t B_t u_t and y_t = C_tᵀ h_t for each channel, in float32 at least.

    On a CPU there is one step of Python for each token: the states of a step lie in the cache, so this is faster than a
    parallel scan, whose passes over all states are bound by memory. On a GPU a block of T tokens takes 2 √T steps.
    O(L d n) time.

    Args:
        u: inputs.
        delta: step sizes Δ, positive; 0 at padding, where the state then stays as it is.
        A: negative.
        B, C: input and output maps of each token.
        bidirectional: add the scan from the right; a token's own input is counted once.

    Returns:
        y, without Mamba's D u.

    Source: Gu and Dao 2023 (Mamba), algorithm 2; lra/reference/selective_scan.py is the recurrence token by token.
    """
    if not bidirectional:
        return _scan_in_groups(u, delta, A, B, C)
    # Both directions are one batch: the second half of the examples runs from right to left.
    u_both, delta_both, B_both, C_both = (append_reversed(x, 1) for x in (u, delta, B, C))
    outputs = _scan_in_groups(u_both, delta_both, A, B_both, C_both)
    forward, backward = outputs.chunk(2)
    # Both scans contain the token's own input.
    maps = (B * C).sum(-1, keepdim=True)
    self_outputs = delta * u * maps
    return forward + backward.flip(1) - self_outputs


def _scan_in_groups(
    u: Float[Tensor, "N L d"],
    delta: Float[Tensor, "N L d"],
    A: Float[Tensor, "d n"],
    B: Float[Tensor, "N L n"],
    C: Float[Tensor, "N L n"],
) -> Float[Tensor, "N L d"]:
    """Scan from left to right without tracing; on a CPU in groups of examples whose states stay in the cache."""
    run_scan = untraced(_SelectiveScan.apply)
    if u.device.type != "cpu":
        return run_scan(u, delta, A, B, C)
    group_size = max(1, CPU_STATES // (BLOCK * A.numel()))
    groups = zip(*(x.split(group_size) for x in (u, delta, B, C)), strict=True)
    outputs = []
    for u_group, delta_group, B_group, C_group in groups:
        outputs.append(run_scan(u_group, delta_group, A, B_group, C_group))
    return torch.cat(outputs)


class _SelectiveScan(torch.autograd.Function):
    """The scan from left to right. Inside, time is the first dimension: x[t] is a step.

    The forward pass keeps the state before each block. The backward pass goes through the blocks from last to
    first: it runs a block again from that state, which gives every h_t, then takes the adjoint λ_t = dL/dh_t from the
    end of the block to its start. h_t is a d x n matrix, u_t and Δ_t have d entries, C_t and B_t have n; products with
    exp(Δ_t A) are entry by entry. From h_t = exp(Δ_t A) h_(t-1) + Δ_t u_t B_tᵀ and y_t = h_t C_t:

        λ_t = dy_t C_tᵀ + exp(Δ_(t+1) A) λ_(t+1)        dC_t = h_tᵀ dy_t
        d(Δ_t A) = λ_t exp(Δ_t A) h_(t-1)               d(Δ_t u_t) = λ_t B_t,   dB_t = λ_tᵀ (Δ_t u_t)
    """

    @staticmethod
    def forward(ctx: Any, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        ctx.save_for_backward(u, delta, A, B, C)
        state = u.new_zeros(u.shape[0], *A.shape)  # (N,d,n)
        ctx.block = block_length(state)
        ctx.starts = []
        outputs = []
        for first in range(0, u.shape[1], ctx.block):
            ctx.starts.append(state)
            u_block, delta_block, B_block, C_block = _time_first(first, ctx.block, u, delta, B, C)
            _, states = _block_states(state, u_block, delta_block, A, B_block)
            block_outputs = states @ C_block[..., None]  # (T,N,d,1)
            outputs.append(block_outputs.squeeze(-1))
            # A copy: a view would keep all states of the block until the backward pass.
            state = states[-1].clone()
        return torch.cat(outputs).transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        u, delta, A, B, C = ctx.saved_tensors
        grad_A = torch.zeros_like(A)
        # Gradients of u, delta, B and C of each block, the last block first.
        block_grads = []
        # The gradient that the next block passes to the last state of a block.
        from_next_block = torch.zeros_like(ctx.starts[0])
        for first in reversed(range(0, u.shape[1], ctx.block)):
            # Run the block again from the state before it.
            start = ctx.starts[first // ctx.block]
            u_block, delta_block, B_block, C_block, grad_block = _time_first(first, ctx.block, u, delta, B, C, grad)
            decays, states = _block_states(start, u_block, delta_block, A, B_block)

            # y_t = h_t C_t: its gradient enters the adjoint of h_t, λ_t = dy_t C_tᵀ + exp(Δ_(t+1) A) λ_(t+1).
            adjoints = grad_block[..., None] * C_block[:, :, None, :]  # (T,N,d,n)
            adjoints[-1] += from_next_block
            adjoints = _carry_back(adjoints, decays, delta_block, A)
            from_next_block = decays[0] * adjoints[0]
            grad_y = grad_block[:, :, None, :]  # (T,N,1,d)
            grad_C = (grad_y @ states).squeeze(2)

            # h_t = exp(Δ_t A) h_(t-1) + Δ_t u_t B_t: the gradient of Δ_t A is λ_t exp(Δ_t A) h_(t-1).
            previous = torch.cat([start[None], states[:-1]])
            grad_exponent = adjoints * decays * previous
            grad_A += torch.einsum("tndk,tnd->dk", grad_exponent, delta_block)

            # The write is Δ_t u_t (scaled_u) times B_t.
            grad_scaled_u = adjoints @ B_block[..., None]
            grad_scaled_u = grad_scaled_u.squeeze(-1)
            scaled_u = (delta_block * u_block)[:, :, None, :]  # (T,N,1,d)
            grad_B = (scaled_u @ adjoints).squeeze(2)
            grad_u = grad_scaled_u * delta_block
            grad_delta = (grad_exponent * A).sum(-1) + grad_scaled_u * u_block
            block_grads.append((grad_u, grad_delta, grad_B, grad_C))

        # Join the blocks, from the first to the last.
        per_input = zip(*reversed(block_grads), strict=True)
        grad_u, grad_delta, grad_B, grad_C = (torch.cat(parts).transpose(0, 1) for parts in per_input)
        return grad_u, grad_delta, grad_A, grad_B, grad_C


def block_length(state: Float[Tensor, "N d n"]) -> int:
    """Return the number of tokens of a block."""
    if state.device.type == "cpu":
        return BLOCK
    return max(BLOCK, GPU_STATES // max(1, state.numel()))


def _time_first(first: int, block: int, *tensors: Tensor) -> list[Tensor]:
    """Cut a block of tokens out of each tensor: (N,L,·) -> (T,N,·)."""
    end = first + block
    return [x[:, first:end].transpose(0, 1) for x in tensors]


def _block_states(
    start: Float[Tensor, "N d n"],
    u: Float[Tensor, "T N d"],
    delta: Float[Tensor, "T N d"],
    A: Float[Tensor, "d n"],
    B: Float[Tensor, "T N n"],
) -> tuple[Float[Tensor, "T N d n"], Float[Tensor, "T N d n"]]:
    """Compute the decays and the states of a block of tokens."""
    exponents = delta[..., None] * A
    decays = exponents.exp()
    # The writes Δ_t u_t B_t, to which each step adds the decayed state before.
    scaled_u = (delta * u)[..., None]
    writes = scaled_u * B[:, :, None, :]
    # Long blocks, on a GPU only: 2 √T steps instead of T. The scan starts from a zero state, so the state before the
    # block is part of the first write.
    if len(writes) > BLOCK:
        writes[0] += decays[0] * start
        return decays, _scan_steps(exponents, writes)
    # In place: each step turns the write of its token into the state.
    states = writes
    previous = start
    for t in range(len(states)):
        now = states[t]
        torch.addcmul(now, decays[t], previous, out=now)
        previous = now
    return decays, states


def _carry_back(
    adjoints: Float[Tensor, "T N d n"],
    decays: Float[Tensor, "T N d n"],
    delta: Float[Tensor, "T N d"],
    A: Float[Tensor, "d n"],
) -> Float[Tensor, "T N d n"]:
    """Add exp(Δ_(t+1) A) λ_(t+1) to each λ_t of a block, from its end to its start."""
    if len(adjoints) > BLOCK:
        # The same scan from the right, with Δ_(t+1) at step t. ``roll`` puts Δ_0 at the last token, where the scan
        # begins with a zero state, so that value does not matter.
        later_delta = delta.roll(-1, 0).flip(0)
        exponents = later_delta[..., None] * A
        return _scan_steps(exponents, adjoints.flip(0)).flip(0)
    for t in range(len(adjoints) - 2, -1, -1):
        now = adjoints[t]
        torch.addcmul(now, decays[t + 1], adjoints[t + 1], out=now)
    return adjoints


def _scan_steps(exponents: Float[Tensor, "T N d n"], inputs: Float[Tensor, "T N d n"]) -> Float[Tensor, "T N d n"]:
    """Compute h_t = exp(exponents_t) h_(t-1) + inputs_t in 2 √T steps; all states of a token are channels."""
    states = scan(exponents.flatten(1)[None], inputs.flatten(1)[None])
    return states[0].view_as(inputs)
