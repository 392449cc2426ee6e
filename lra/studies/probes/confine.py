"""A trained model whose tokens see their neighbours alone: the same weights, each layer confined to a reach of k."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...attention.base import Attention
from ...attention.conv import Conv
from ...attention.s4d import S4D
from ...attention.sdpa import SDPA
from ...attention.softmax import Softmax
from ...maps.maps import matrix
from ...ops.blocks import FLOOR
from ..qkv import mechanisms


def by(model: nn.Module) -> Literal["mask", "map", "kernel"] | None:
    """Return the confinement method of a model, or None if a layer has none.

    ``mask``: exact attention over the neighbours alone, one softmax over them. ``map``: the matrix that multiplies the
    values is set to zero elsewhere and not normalised anew, since weights of CUR have signs. ``kernel``: the lags of a
    convolution are set to zero beyond the reach.
    """
    found = {part and _method(part)[0] for part in map(_part, model.blocks)}
    return found.pop() if len(found) == 1 else None


@contextlib.contextmanager
def confined(model: nn.Module, reach: int) -> Iterator[None]:
    """Confine every layer to tokens j with |i - j| <= ``reach`` within the block.

    What is no part of the mechanism, such as MEGA's moving average, stays as it is.

    Raises:
        ValueError: a layer has no mask, map or kernel.
    """
    if by(model) is None:
        raise ValueError("a layer of this model has no mask, map or kernel to confine")
    with contextlib.ExitStack() as stack:
        for part in map(_part, model.blocks):
            _, name, confine = _method(part)
            setattr(part, name, partial(confine, part, getattr(part, name), reach))
            stack.callback(delattr, part, name)  # the method of the class is seen again
        yield


def _part(block: nn.Module) -> nn.Module | None:
    """The mechanism of a block, None if it has none of these kinds."""
    attentions = list(mechanisms(block).values())
    mixer = getattr(block, "mixer", None)
    if len(attentions) == 1:
        return attentions[0]
    return mixer if isinstance(mixer, Conv | S4D) else None


def _method(part: nn.Module) -> tuple[str, str, Callable]:
    return next(value for kind, value in _METHODS.items() if isinstance(part, kind))


def _band(L: int, reach: int, device) -> Tensor:
    at = torch.arange(L, device=device)
    return (at[:, None] - at).abs() <= reach


def _fused(part: SDPA, forward: Callable, reach: int, q, k, v, mask=None) -> Tensor:
    seen = _band(q.shape[2], reach, q.device)
    if part.causal:
        seen = seen.tril()
    itself = torch.eye(len(seen), dtype=torch.bool, device=q.device)  # padded queries may see nothing else
    return F.scaled_dot_product_attention(q, k, v, seen if mask is None else seen & mask[:, None, None] | itself)


def _written_out(part: Softmax, forward: Callable, reach: int, q, k, v, mask=None, bias=None) -> Tensor:
    seen = _band(q.shape[2], reach, q.device)
    far = torch.zeros(seen.shape, device=q.device).masked_fill(~seen, FLOOR)
    return forward(q, k, v, mask, lambda rows, cols: far + (0 if bias is None else bias(rows, cols)))


def _mapped(part: Attention, forward: Callable, reach: int, q, k, v, mask=None, **options) -> Tensor:
    found = matrix(forward, {"q": q, "k": k, "v": v, "mask": mask} | options)
    return found * _band(v.shape[2], reach, v.device) @ v.to(found.dtype)


def _kernel(part: S4D, kernel: Callable, reach: int, length: int) -> Tensor:
    made = kernel(length)
    at = torch.arange(made.shape[-1], device=made.device)
    lag = at if part.causal else torch.minimum(at, made.shape[-1] - at)
    return made * (lag <= reach)


def _filters(part: Conv, mix: Callable, reach: int, v: Tensor, mask: Tensor | None) -> Tensor:
    width, whole = part.filters.shape[1], part.filters.data
    lag = (torch.arange(width, device=v.device) - (width - 1 if part.causal else width // 2)).abs()
    part.filters.data = whole * (lag <= reach)
    try:
        return mix(v, mask)
    finally:
        part.filters.data = whole


_METHODS = {  # how a mechanism is confined, its method that is exchanged, and for what
    SDPA: ("mask", "forward", _fused),
    Softmax: ("mask", "forward", _written_out),
    Conv: ("kernel", "_mix", _filters),
    S4D: ("kernel", "kernel", _kernel),
    Attention: ("map", "forward", _mapped),
}
