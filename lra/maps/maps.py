"""Attention maps of a trained model: the weight of each position of a row for another.

N rows (towers count as rows), H heads, L length, R readings. A reading is a set of weights over queries: a one-hot for
one position, a mean for the pooling.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..attention.base import Attention, Mixer
from ..data.datamodule import Batch

WIDTH = 128  # columns of the identity at a time, so that values are not too wide for any mechanism


@torch.no_grad()
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
        (x, *_), _ = calls(model, batch, block)[0]
        N, L = x.shape[:2]
        towers = []  # one call, or one for each tower
        for (q, k, v, mask), options in calls(model, batch, attention):
            found = matrix(attention, {"q": q, "k": k, "v": v, "mask": mask} | options)
            chunks = found.unflatten(0, (N, -1))  # (N,B,H,c,c), consecutive ones of a row, which go on the diagonal
            whole = torch.einsum("nbhij,bd->nhbidj", chunks, torch.eye(chunks.shape[1]).to(chunks))
            towers.append(whole.flatten(4, 5).flatten(2, 3)[..., :L, :L])
        return torch.stack(towers, 1).flatten(0, 1)
    if not isinstance(mixer, Mixer):
        return None
    (x, mask), _ = calls(model, batch, mixer)[0]
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


def jacobian(model: nn.Module, batch: Batch, layer: int, readings: Tensor) -> Tensor:
    """Compute the Frobenius norm of the derivative of each reading of a layer's output by each vector of its input.

    The layer is its mixer if it has one, else the whole block with its residual path.

    Args:
        model: trained.
        batch: batch of examples.
        layer: index of the block.
        readings: weights (N,R,L).

    Returns:
        The norms (N,R,L).
    """
    block = model.blocks[layer]
    part = getattr(block, "mixer", block)
    (x, *rest), _ = calls(model, batch, part)[0]
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        out = part(x, *rest)
        out = out[0] if isinstance(out, tuple) else out  # (N,L,d)
        read = readings.to(out.dtype) @ out  # (N,R,d)
        squares = x.new_zeros(read.shape[:2] + x.shape[1:2])  # (N,R,L)
        for r, c in np.ndindex(read.shape[1:]):
            (gradient,) = torch.autograd.grad(read[:, r, c].sum(), x, retain_graph=True)  # (N,L,d)
            squares[:, r] += gradient.square().sum(-1)
    return squares.sqrt()


def calls(model: nn.Module, batch: Batch, part: nn.Module) -> list[tuple[tuple, dict[str, Any]]]:
    """Record the arguments of every call of a part of a model on a batch, by position and by name."""
    made: list[tuple[tuple, dict[str, Any]]] = []
    hook = lambda _, *arguments: made.append(arguments)
    with part.register_forward_pre_hook(hook, with_kwargs=True), torch.no_grad():
        model(batch.inputs, batch.mask)
    return made
