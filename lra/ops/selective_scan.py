"""Mamba's selective scan: a diagonal state of n numbers for each of d channels, whose decay depends on the token."""

import torch
from jaxtyping import Float
from torch import Tensor

from .precision import full_precision

# The forward pass stores the state at every 32nd token, and the backward pass recomputes the others block by block:
# O(d n (L / 32 + 32)) memory instead of O(d n L).
BLOCK = 32


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

    One step of Python for each token: on a CPU the states of a step lie in the cache, so this is faster than a parallel
    scan, whose passes over all states are bound by memory. O(L d n) time.

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
        return _scan_eagerly(u, delta, A, B, C)
    # Both directions are one batch: the second half of the examples runs from right to left.
    inputs = [torch.cat([x, x.flip(1)]) for x in (u, delta, B, C)]
    outputs = _scan_eagerly(inputs[0], inputs[1], A, inputs[2], inputs[3])
    forward, backward = outputs.chunk(2)
    # Both scans contain the token's own input.
    own_outputs = delta * u * (B * C).sum(-1, keepdim=True)
    return forward + backward.flip(1) - own_outputs


def _scan_eagerly(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    scan = _SelectiveScan.apply
    if torch.compiler.is_compiling():
        # torch.compile would unroll the loop over all tokens; with a graph break the scan runs as it is, in both
        # passes. Not as a decorator, which would import the compiler and Triton with this module.
        scan = torch.compiler.disable(scan)
    return scan(u, delta, A, B, C)


class _SelectiveScan(torch.autograd.Function):
    """The scan from left to right. Inside, time is the first dimension, so that a step is contiguous."""

    @staticmethod
    def forward(ctx, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        ctx.save_for_backward(u, delta, A, B, C)
        state = u.new_zeros(u.shape[0], *A.shape)  # (N,d,n)
        ctx.starts = []
        outputs = []
        for first in range(0, u.shape[1], BLOCK):
            ctx.starts.append(state)
            u_block, delta_block, B_block, C_block = _time_first(first, u, delta, B, C)
            states = _block_states(state, u_block, delta_block, A, B_block)[1]
            outputs.append((states @ C_block[..., None]).squeeze(-1))  # (T,N,d)
            state = states[-1]
        return torch.cat(outputs).transpose(0, 1)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, ...]:
        u, delta, A, B, C = ctx.saved_tensors
        grad_A = torch.zeros_like(A)
        per_token = []  # gradients of u, delta, B and C of each block, the last block first
        # adjoint: the gradient of the loss with respect to the state behind the block.
        adjoint = torch.zeros_like(ctx.starts[0])
        for first in reversed(range(0, u.shape[1], BLOCK)):
            start = ctx.starts[first // BLOCK]
            u_block, delta_block, B_block, C_block, grad_block = _time_first(first, u, delta, B, C, grad)
            decays, states = _block_states(start, u_block, delta_block, A, B_block)

            # y_t = h_t C_t: its gradient enters the adjoint of h_t, λ_t = dy_t C_tᵀ + exp(Δ_(t+1) A) λ_(t+1).
            adjoints = grad_block[..., None] * C_block[:, :, None, :]  # (T,N,d,n)
            adjoints[-1] += adjoint
            for t in range(len(adjoints) - 2, -1, -1):
                torch.addcmul(adjoints[t], decays[t + 1], adjoints[t + 1], out=adjoints[t])
            adjoint = decays[0] * adjoints[0]
            grad_C = (grad_block[:, :, None, :] @ states).squeeze(2)

            # h_t = exp(Δ_t A) h_(t-1) + Δ_t u_t B_t: the gradient of Δ_t A is λ_t exp(Δ_t A) h_(t-1).
            previous = torch.cat([start[None], states[:-1]])
            grad_exponent = adjoints * decays * previous
            grad_A += torch.einsum("tndk,tnd->dk", grad_exponent, delta_block)
            grad_write = (adjoints @ B_block[..., None]).squeeze(-1)  # of Δ_t u_t
            grad_delta = (grad_exponent * A).sum(-1) + grad_write * u_block
            grad_B = ((delta_block * u_block)[:, :, None, :] @ adjoints).squeeze(2)
            per_token.append((grad_write * delta_block, grad_delta, grad_B, grad_C))
        blocks = zip(*reversed(per_token), strict=True)
        grad_u, grad_delta, grad_B, grad_C = (torch.cat(parts).transpose(0, 1) for parts in blocks)
        return grad_u, grad_delta, grad_A, grad_B, grad_C


def _time_first(first: int, *tensors: Tensor) -> list[Tensor]:
    """Cut a block of tokens out of each tensor: (N,L,·) -> (T,N,·)."""
    return [x[:, first : first + BLOCK].transpose(0, 1) for x in tensors]


def _block_states(start: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the decays and the states of a block of tokens, both (T,N,d,n)."""
    decays = (delta[..., None] * A).exp()
    states = (delta * u)[..., None] * B[:, :, None, :]
    previous = start
    for t in range(len(states)):
        torch.addcmul(states[t], decays[t], previous, out=states[t])
        previous = states[t]
    return decays, states
