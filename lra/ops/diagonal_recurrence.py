"""A real recurrence of each channel with decays that vary over time: RG-LRU, minGRU, minLSTM."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from .chunks import split_chunks
from .precision import full_precision


@full_precision
def diagonal_recurrence(
    log_decay: Float[Tensor, "N L P"],
    inputs: Float[Tensor, "N L P"],
    *,
    bidirectional: bool = False,
) -> Float[Tensor, "N L P"]:
    """Compute x_t = exp(g_t) x_(t-1) + u_t for each channel, in float32 at least.

    The sequence is cut into about √L blocks. All blocks advance together, token by token, from a zero state; then the
    states between blocks are carried on, and each token adds the carried state times the decays since the start of its
    block. 2 √L steps of Python and three passes over the data.

    Args:
        log_decay: g, at most 0; 0 at padding.
        inputs: u; 0 at padding.
        bidirectional: add the recurrence from the right; a token's own input is counted once.

    Returns:
        The states.
    """
    if not bidirectional:
        return _recur_eagerly(log_decay, inputs)
    # Both directions are one batch: the second half of the examples runs from right to left.
    both_decays = torch.cat([log_decay, log_decay.flip(1)])
    both_inputs = torch.cat([inputs, inputs.flip(1)])
    forward, backward = _recur_eagerly(both_decays, both_inputs).chunk(2)
    return forward + backward.flip(1) - inputs


def _recur_eagerly(log_decay: Tensor, inputs: Tensor) -> Tensor:
    recur = _Recurrence.apply
    if torch.compiler.is_compiling():
        # torch.compile would unroll 2 √L steps; with a graph break the recurrence runs as it is, in both passes. Not
        # as a decorator, which would import the compiler and Triton with this module.
        recur = torch.compiler.disable(recur)
    return recur(log_decay, inputs)


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, log_decay: Tensor, inputs: Tensor) -> Tensor:
        states = _scan(log_decay, inputs)
        ctx.save_for_backward(log_decay, states)
        return states

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        log_decay, states = ctx.saved_tensors
        # The adjoint λ_t = dx_t + exp(g_(t+1)) λ_(t+1) is the same recurrence from the right, with its decays
        # shifted by one token.
        first = torch.zeros_like(log_decay[:, :1])
        reversed_decay = torch.cat([first, log_decay[:, 1:].flip(1)], dim=1)
        adjoint = _scan(reversed_decay, grad.flip(1)).flip(1)
        # x_t contains exp(g_t) x_(t-1).
        previous = torch.cat([torch.zeros_like(states[:, :1]), states[:, :-1]], dim=1)
        return adjoint * log_decay.exp() * previous, adjoint


def _scan(log_decay: Tensor, inputs: Tensor) -> Tensor:
    """Compute the recurrence from left to right."""
    length = inputs.shape[1]
    size = math.isqrt(max(length - 1, 0)) + 1
    log_decay = split_chunks(log_decay, size, 1)  # (N,B,T,P)
    decay = log_decay.exp()

    # Within blocks, from a zero state.
    states = split_chunks(inputs, size, 1).clone()
    for t in range(1, size):
        torch.addcmul(states[:, :, t], decay[:, :, t], states[:, :, t - 1], out=states[:, :, t])

    # Between blocks: the state in front of each one.
    since_start = log_decay.cumsum(2).exp()
    carry = torch.zeros_like(states[:, 0, 0])
    carries = []
    for block in range(states.shape[1]):
        carries.append(carry)
        carry = since_start[:, block, -1] * carry + states[:, block, -1]
    states = states + since_start * torch.stack(carries, dim=1)[:, :, None]
    return states.flatten(1, 2)[:, :length]
