"""Attention maps of a trained model: the weight of each position of a sequence for another.

N examples (each tower counts as one), H heads, L length, R readings. A reading is a set of weights over queries:
one-hot for one position, a mean for the pooling.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..attention.base import Attention, Mixer
from ..data.datamodule import Batch

# Columns of the identity per call, so that values are not too wide for any mechanism.
WIDTH = 128


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
        # One call, or one for each tower.
        towers = []
        for (q, k, v, mask), options in calls(model, batch, attention):
            weights = matrix(attention, {"q": q, "k": k, "v": v, "mask": mask} | options)
            towers.append(_join_chunks(weights, N)[..., :L, :L])
        return torch.stack(towers, 1).flatten(0, 1)
    if not isinstance(mixer, Mixer):
        return None
    (x, mask), _ = calls(model, batch, mixer)[0]
    return mixer.attention_map(x, mask)


def _join_chunks(weights: Tensor, num_examples: int) -> Tensor:
    """Place the maps of consecutive chunks of a sequence on the diagonal: (N·B,H,c,c) -> (N,H,B·c,B·c)."""
    chunks = weights.unflatten(0, (num_examples, -1))  # (N,B,H,c,c)
    eye = torch.eye(chunks.shape[1]).to(chunks)
    blocks = torch.einsum("nbhij,bd->nhbidj", chunks, eye)  # (N,H,B,c,B,c)
    return blocks.flatten(4, 5).flatten(2, 3)


def matrix(attention: Callable[..., Tensor], arguments: dict[str, Any]) -> Tensor:
    """Compute the matrix (N,H,L,L) that multiplies the values in a call of a mechanism: its result for the identity.

    Args:
        attention: the mechanism.
        arguments: arguments of the call by name.
    """
    v = arguments["v"]
    eye = torch.eye(v.shape[2], dtype=v.dtype, device=v.device)
    values = eye.expand(*v.shape[:2], -1, -1)  # (N,H,L,L)
    columns = []
    for part in values.split(WIDTH, -1):
        columns.append(attention(**arguments | {"v": part}))
    return torch.cat(columns, -1)


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
    module = getattr(block, "mixer", block)
    (x, *arguments), _ = calls(model, batch, module)[0]
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        out = module(x, *arguments)
        # A block returns a tuple, a mixer a tensor.
        if isinstance(out, tuple):
            out = out[0]  # (N,L,d)
        read = readings.to(out.dtype) @ out  # (N,R,d)
        num_examples, num_readings, dim = read.shape
        squares = x.new_zeros(num_examples, num_readings, x.shape[1])  # (N,R,L)
        # One backward pass per reading and feature; examples do not depend on each other.
        for r, feature in np.ndindex(num_readings, dim):
            total = read[:, r, feature].sum()
            (gradient,) = torch.autograd.grad(total, x, retain_graph=True)  # (N,L,d)
            squares[:, r] += gradient.square().sum(-1)
    return squares.sqrt()


def calls(model: nn.Module, batch: Batch, module: nn.Module) -> list[tuple[tuple, dict[str, Any]]]:
    """Record the arguments of every call of a module of a model on a batch, by position and by name."""
    recorded: list[tuple[tuple, dict[str, Any]]] = []

    def record_arguments(_module: nn.Module, *arguments) -> None:
        recorded.append(arguments)

    hook = module.register_forward_pre_hook(record_arguments, with_kwargs=True)
    with hook, torch.no_grad():
        model(batch.inputs, batch.mask)
    return recorded
