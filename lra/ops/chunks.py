"""Chunks of a sequence, and the states that a linear recurrence has at their boundaries.

A linear recurrence over L tokens is computed chunk by chunk: within a chunk by matrix products over its C tokens,
between chunks through a state of D x E numbers. That takes O(L C (D + E) + L D E) time instead of O(L² (D + E)).
"""

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F


def split_chunks(x: Tensor, size: int, dim: int) -> Tensor:
    """Split the positions along ``dim`` into chunks: (..., L, ...) -> (..., ceil(L / size), size, ...).

    The last chunk is filled with zeros. A zero key writes nothing and a logarithmic decay of zero keeps the state, so
    the additional positions do not change a recurrence.
    """
    num_padding = -x.shape[dim] % size
    if num_padding:
        # F.pad counts dimensions from the last one.
        trailing_dims = x.ndim - 1 - dim % x.ndim
        padding = [0, 0] * trailing_dims + [0, num_padding]
        x = F.pad(x, padding)
    return x.unflatten(dim, (-1, size))


def boundary_states(
    decay: Float[Tensor, "*heads B _ 1"],
    increments: Float[Tensor, "*heads B D E"],
    *,
    reverse: bool = False,
) -> Float[Tensor, "*heads B D E"]:
    """Compute the state in front of each chunk, S_b = decay_(b-1) S_(b-1) + increment_(b-1) with S_0 = 0.

    Args:
        decay: factor over a whole chunk, one for the state or one for each of its D rows.
        increments: what a chunk adds to the state by its end.
        reverse: start from the last chunk; the state is then the one behind each chunk.
    """
    # unbind instead of x[..., i, :, :], whose gradient would be a zero-filled tensor of all chunks for every i.
    chunk_decays = decay.unbind(-3)
    chunk_increments = increments.unbind(-3)
    num_chunks = len(chunk_increments)
    order: Iterable[int] = range(num_chunks)
    if reverse:
        order = reversed(range(num_chunks))

    state = torch.zeros_like(chunk_increments[0])
    states = [state] * num_chunks
    for chunk in order:
        states[chunk] = state
        decayed = chunk_decays[chunk] * state
        state = decayed + chunk_increments[chunk]
    return torch.stack(states, dim=-3)


def causal_mask(size: int, device: torch.device, *, diagonal: bool = True) -> Bool[Tensor, "size size"]:
    """Build the mask of keys j <= i for query i; without the diagonal, of keys j < i."""
    ones = torch.ones(size, size, dtype=torch.bool, device=device)
    last_diagonal = 0 if diagonal else -1
    return ones.tril(last_diagonal)
