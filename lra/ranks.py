"""Communication between the ranks of a run. With one process every function works without a group."""

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def all_reduce_sum(value: torch.Tensor) -> torch.Tensor:
    """Sum a tensor over all ranks, in place and without a gradient."""
    if dist.is_initialized():
        dist.all_reduce(value)
    return value


def gather(value: T) -> list[T]:
    """Return the values of all ranks, in order, on every rank."""
    if not dist.is_initialized():
        return [value]
    values: list = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def on_rank_zero(function: Callable[[], T]) -> T:
    """Call a function on rank 0 and broadcast the result.

    A ValueError there ends every rank: rank 0 raises it, the others exit silently.
    """
    if not dist.is_initialized():
        return function()
    result: list = [None, None]
    if rank() == 0:
        try:
            result[0] = function()
        except ValueError as error:
            result[1] = error
    dist.broadcast_object_list(result, src=0, device=torch.device("cpu"))
    value, error = result
    if error is not None:
        raise error if rank() == 0 else SystemExit(1)
    return value
