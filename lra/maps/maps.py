"""Attention maps of a trained model: the weight of each position of a row for another.

N rows (towers count as rows), H heads, L length, R readings. A reading is a set of weights over queries: a one-hot for
one position, a mean for the pooling.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..attention.base import Attention, Mixer
from ..data.datamodule import Batch

WIDTH = 128  # columns of the identity at a time, so that values are not too wide for any mechanism


def attention_map(model: nn.Module, batch: Batch, layer: int) -> Tensor | None:
    """Compute the matrix that multiplies the values of a layer: the result of the mechanism for the identity.

    Args:
        model: trained.
        batch: batch of examples.
        layer: index of the block.

    Returns:
        The maps (N,H,L,L), H = 1 for a mechanism without heads; None if the mechanism has no values or is not linear in
        them.
    """
    block = model.blocks[layer]
    mixer = getattr(block, "mixer", block)
    attention = getattr(mixer, "attention", None)
    if isinstance(attention, Attention):
        N, L = _inputs(model, batch, block)[0].shape[:2]
        towers = []  # one call, or one for each tower
        for (q, k, v, mask), options in _calls(model, batch, attention):
            with torch.no_grad():
                found = matrix(attention, {"q": q, "k": k, "v": v, "mask": mask} | options)
            towers.append(_whole(found, N)[..., :L, :L])
        return torch.stack(towers, 1).flatten(0, 1)
    if not isinstance(mixer, Mixer):
        return None
    x, mask = _inputs(model, batch, mixer)
    with torch.no_grad():
        return mixer.attention_map(x, mask)


def matrix(attention: Callable[..., Tensor], arguments: dict[str, Any]) -> Tensor:
    """Compute the matrix (N,H,L,L) that multiplies the values in a call of a mechanism: its result for the identity.

    Args:
        attention: the mechanism.
        arguments: arguments of the call by name.
    """
    v = arguments["v"]
    eye = torch.eye(v.shape[2], dtype=v.dtype, device=v.device).expand(*v.shape[:2], -1, -1)
    return torch.cat([attention(**arguments | {"v": part}) for part in eye.split(WIDTH, -1)], -1)


def _whole(maps: Tensor, rows: int) -> Tensor:
    """Put maps (N B,H,c,c) of consecutive chunks of rows on the diagonal of (N,H,Bc,Bc); N = ``rows``."""
    chunks = maps.unflatten(0, (rows, -1)).transpose(1, 2)  # (N,H,B,c,c)
    B = chunks.shape[2]
    diagonal = torch.eye(B, dtype=chunks.dtype, device=chunks.device)[:, None, :, None]  # (B,1,B,1)
    return (chunks[..., None, :] * diagonal).flatten(4, 5).flatten(2, 3) if B > 1 else chunks[:, :, 0]


def jacobian(model: nn.Module, batch: Batch, layer: int, readings: Tensor) -> Tensor:
    """Compute the Frobenius norm of the derivative of each reading of a layer's output by each vector of its input.

    The layer is its mixer if it has one, else the whole block with its residual path.

    Args:
        model: trained.
        batch: batch of examples.
        layer: index of the block.
        readings: weights (N,R,L).

    Returns:
        The norms (N,1,R,L).
    """
    block = model.blocks[layer]
    part = getattr(block, "mixer", block)
    x, *rest = _inputs(model, batch, part)
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        out = part(x, *rest)
        out = out[0] if isinstance(out, tuple) else out  # (N,L,d)
        read = readings.to(out.dtype) @ out  # (N,R,d)
        squares = torch.stack([_squares(read[:, r], x) for r in range(read.shape[1])], 1)  # (N,R,L)
    return squares.sqrt()[:, None]


def _squares(read: Tensor, x: Tensor) -> Tensor:
    """Sum the squared derivatives of read (N,d) by x (N,L,d) over both widths: (N,L)."""
    gradients = (torch.autograd.grad(read[:, c].sum(), x, retain_graph=True)[0] for c in range(read.shape[1]))
    return sum(gradient.square().sum(-1) for gradient in gradients)


def _inputs(model: nn.Module, batch: Batch, part: nn.Module) -> tuple:
    """The arguments with which the model calls a part of it on a batch."""
    return _call(model, batch, part)[0]


def _call(model: nn.Module, batch: Batch, part: nn.Module) -> tuple[tuple, dict]:
    return _calls(model, batch, part)[0]


def _calls(model: nn.Module, batch: Batch, part: nn.Module) -> list[tuple[tuple, dict]]:
    with _recording(part) as calls, torch.no_grad():
        model(batch.inputs, batch.mask)
    return calls


@contextmanager
def _recording(part: nn.Module) -> Iterator[list[tuple[tuple, dict]]]:
    calls: list[tuple[tuple, dict]] = []
    handle = part.register_forward_pre_hook(lambda _, *inputs: calls.append(inputs), with_kwargs=True)
    try:
        yield calls
    finally:
        handle.remove()
