"""Communication between the ranks of a run. With one process every function works without a group."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from .console import OtherRankFailed

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

    Raises:
        ValueError: the function raised it on rank 0.
        OtherRankFailed: the same, on the other ranks.
    """
    if not dist.is_initialized():
        return function()
    value = None
    error = None
    if rank() == 0:
        try:
            value = function()
        except ValueError as reason:
            error = reason
    value, error = _broadcast((value, error))
    if error is not None:
        if rank() == 0:
            raise error
        raise OtherRankFailed("rank 0 failed")
    return value


@contextlib.contextmanager
def rank_zero_first() -> Iterator[None]:
    """Run the block on rank 0, then on the other ranks.

    Raises:
        ValueError: the block raised it on rank 0.
        OtherRankFailed: the same, on the other ranks, before the block.
    """
    if not dist.is_initialized():
        yield
        return
    if rank() > 0:
        # Wait until rank 0 has run the block and broadcasts whether it failed.
        failed = _broadcast(None)
        if failed:
            raise OtherRankFailed("rank 0 failed")
        yield
        return
    try:
        yield
    except ValueError:
        _broadcast(True)
        raise
    _broadcast(False)


def _broadcast(value: Any) -> Any:
    """Return the value of rank 0 on every rank."""
    values = [value]
    dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
    return values[0]
