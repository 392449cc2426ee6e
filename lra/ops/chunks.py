"""Linear recurrences in chunks: their states at the boundaries of chunks, and both directions as one batch.

A linear recurrence over L tokens is computed chunk by chunk: within a chunk by matrix products over its C tokens,
between chunks through a state of D x E numbers. That takes O(L C (D + E) + L D E) time instead of O(L² (D + E)).
``blocks.split_blocks`` fills the last chunk with zeros: a zero key writes nothing and a logarithmic decay of zero keeps
the state, so the additional positions change nothing.
"""

import itertools
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .untraced import operator


def append_reversed(x: Tensor, dim: int) -> Tensor:
    """Append a copy of every example with its positions reversed: (N,...) -> (2 N,...), both directions as one batch.

    Args:
        x: tensor whose first dimension counts the examples.
        dim: dimension of the positions.
    """
    return torch.cat([x, x.flip(dim)])


def boundary_states(
    decay: Float[Tensor, "*heads B _ 1"],
    increments: Float[Tensor, "*heads B D E"],
    *,
    reverse: bool = False,
) -> Float[Tensor, "*heads B D E"]:
    """Compute the state before each chunk, S_b = decay_(b-1) S_(b-1) + increment_(b-1) with S_0 = 0.

    Args:
        decay: factor over a whole chunk, one for the state or one for each of its D rows.
        increments: what a chunk adds to the state by its end.
        reverse: start from the last chunk, and compute the state after each chunk from the chunks that follow it:
            S_b = decay_(b+1) S_(b+1) + increment_(b+1), with 0 for the last one.
    """
    return _boundary_states(decay, increments, reverse)


@operator("boundary_states")
def _boundary_states(decay: Tensor, increments: Tensor, reverse: bool) -> Tensor:
    """Compute ``boundary_states`` by a loop with two tensor operations for each chunk."""
    chunk_decays = decay.unbind(-3)
    chunk_increments = increments.unbind(-3)
    states = torch.zeros_like(increments)
    chunk_states = states.unbind(-3)
    order = list(range(len(chunk_states)))
    if reverse:
        order.reverse()
    for chunk, later in itertools.pairwise(order):
        # addcmul would round once; published runs were computed with two roundings.
        torch.mul(chunk_decays[chunk], chunk_states[chunk], out=chunk_states[later])
        chunk_states[later].add_(chunk_increments[chunk])
    return states


@_boundary_states.register_fake
def _(decay: Tensor, increments: Tensor, reverse: bool) -> Tensor:
    return torch.empty_like(increments)


def _save_states(ctx: Any, inputs: tuple[Tensor, Tensor, bool], output: Tensor) -> None:
    decay, _, ctx.reverse = inputs
    ctx.save_for_backward(decay, output)


def _boundary_states_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    """Compute the gradients of decay and increments.

    Let dS_b be the incoming gradient of S_b, and λ_b the whole gradient of the state after chunk b. λ_b is also the
    gradient of increment_b, and

        λ_(b-1) = dS_b + decay_b λ_b,    d decay_b = λ_b S_b summed over the entries that share the decay.
    """
    decay, states = ctx.saved_tensors
    # λ is carried in the other direction.
    adjoints = _boundary_states(decay, grad, not ctx.reverse)
    grad_decay = (adjoints * states).sum_to_size(decay.shape)
    return grad_decay, adjoints, None


_boundary_states.register_autograd(_boundary_states_backward, setup_context=_save_states)


def chunk_size(chunk: int, length: int) -> int:
    """Return ``chunk``, or the length of a shorter sequence.

    min() is avoided: under torch.compile it would turn every size into an expression of the length, and the code
    generator cannot always compare such expressions.
    """
    if length < chunk:
        return length
    return chunk


def causal_mask(size: int, device: torch.device, *, diagonal: bool = True) -> Bool[Tensor, "size size"]:
    """Build the mask of keys j <= i for query i; without the diagonal, of keys j < i."""
    ones = torch.ones(size, size, dtype=torch.bool, device=device)
    last_diagonal = 0 if diagonal else -1
    return ones.tril(last_diagonal)
