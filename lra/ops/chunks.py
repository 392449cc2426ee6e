"""Chunks of a sequence, and the states that a linear recurrence has at their boundaries.

A linear recurrence over L tokens is computed chunk by chunk: within a chunk by matrix products over its C tokens,
between chunks through a state of D x E numbers. That takes O(L C (D + E) + L D E) time instead of O(L² (D + E)).
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def split_chunks(x: Tensor, size: int, dim: int) -> Tensor:
    """Split the positions along ``dim`` into chunks: (..., L, ...) -> (..., ceil(L / size), size, ...).

    The last chunk is filled with zeros. A zero key writes nothing and a logarithmic decay of zero keeps the state, so
    the additional positions do not change a recurrence.
    """
    missing = -x.shape[dim] % size
    if missing:
        padding = [0, 0] * (x.ndim - 1 - dim % x.ndim) + [0, missing]
        x = F.pad(x, padding)
    return x.unflatten(dim, (-1, size))


def boundary_states(decay: Tensor, increments: Tensor, *, reverse: bool = False) -> Tensor:
    """Compute the state in front of each chunk, S_b = decay_(b-1) S_(b-1) + increment_(b-1) with S_0 = 0.

    Args:
        decay: factor over a whole chunk for each row of the state, (..., B, 1, 1) or (..., B, D, 1).
        increments: what a chunk adds to the state by its end, (..., B, D, E).
        reverse: start from the last chunk; the state is then the one behind each chunk.

    Returns:
        (..., B, D, E).
    """
    # unbind, not indexing: the gradient of an index is a tensor of all chunks.
    chunk_decays = decay.unbind(-3)
    chunk_increments = increments.unbind(-3)
    order = range(len(chunk_increments))
    state = torch.zeros_like(chunk_increments[0])
    states = [state] * len(chunk_increments)
    for chunk in reversed(order) if reverse else order:
        states[chunk] = state
        state = chunk_decays[chunk] * state + chunk_increments[chunk]
    return torch.stack(states, dim=-3)


def causal_mask(size: int, device: torch.device, *, diagonal: bool = True) -> Tensor:
    """Build the mask (size, size) of keys j <= i for query i; without the diagonal, of keys j < i."""
    return torch.ones(size, size, dtype=torch.bool, device=device).tril(0 if diagonal else -1)
