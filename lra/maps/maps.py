"""Attention maps of a trained model: the weight of each key position for each query position.

N examples (each tower counts as one), H heads, L length, R readings. A reading is a set of weights over the
queries. It is one-hot for one query position, or it is the pooling of the model: one-hot for a class token or the last
token, else the mean over real tokens.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..attention.base import Attention, Mixer
from ..data.datamodule import Batch
from ..model.classifier import Classifier

# Columns of the identity per call of a mechanism, which limits the width and the memory of the values.
WIDTH = 128
# The arguments of a mechanism that are passed by position; a custom class may give them other names.
POSITIONAL = ("q", "k", "v", "mask")


@torch.no_grad()
def attention_map(model: Classifier, batch: Batch, layer: int) -> Tensor | None:
    """Compute the matrix that multiplies the values of a layer: the result of the mechanism for the identity.

    Args:
        model: trained.
        batch: batch of examples.
        layer: index of the block.

    Returns:
        The maps (N,H,L,L), H = 1 for a mechanism without heads; None for Luna and DBA, and for a mixer that is
        recurrent, has no values, or is not linear in them.
    """
    block = model.blocks[layer]
    mixer = getattr(block, "mixer", block)
    attention = getattr(mixer, "attention", None)
    if not isinstance(attention, Attention):
        if not isinstance(mixer, Mixer):
            return None
        # One call of the mixer, or one for each tower.
        tower_maps = []
        for call in calls(model, batch, mixer):
            x, mask = call.args
            tower_map = mixer.attention_map(x, mask)
            if tower_map is None:
                return None
            tower_maps.append(tower_map)
        return torch.stack(tower_maps, 1).flatten(0, 1)

    # The sequences of the block; within it they may be cut into chunks.
    first_call = calls(model, batch, block)[0]
    N, L, _ = first_call.args[0].shape

    # One call of the mechanism, or one for each tower.
    tower_maps = []
    for call in calls(model, batch, attention):
        q, k, v, mask = call.args
        arguments = {"q": q, "k": k, "v": v, "mask": mask}
        arguments |= call.kwargs
        chunk_maps = matrix(attention, arguments)
        full_map = _join_chunks(chunk_maps, N)
        tower_maps.append(full_map[..., :L, :L])
    return torch.stack(tower_maps, 1).flatten(0, 1)


def _join_chunks(weights: Tensor, num_examples: int) -> Tensor:
    """Place the maps of consecutive chunks of a sequence on the diagonal: (N·B,H,c,c) -> (N,H,B·c,B·c)."""
    chunks = weights.unflatten(0, (num_examples, -1))  # (N,B,H,c,c)
    num_chunks = chunks.shape[1]
    eye = torch.eye(num_chunks).to(chunks)
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
    N, H, _, _ = v.shape
    values = eye.expand(N, H, -1, -1)  # (N,H,L,L)
    arguments = dict(arguments)
    columns = []
    for part in values.split(WIDTH, -1):
        arguments["v"] = part
        # With resample=always, every group of columns gets the same random selection.
        with torch.random.fork_rng(devices=[v.device] if v.is_cuda else []):
            torch.manual_seed(0)
            columns.append(call_mechanism(attention, arguments))
    return torch.cat(columns, -1)


def call_mechanism(attention: Callable[..., Tensor], arguments: dict[str, Any]) -> Tensor:
    """Call a mechanism as a model does: q, k, v and mask by position, further arguments by name."""
    options = {name: value for name, value in arguments.items() if name not in POSITIONAL}
    return attention(arguments["q"], arguments["k"], arguments["v"], arguments.get("mask"), **options)


def jacobian(model: Classifier, batch: Batch, layer: int, readings: Tensor) -> Tensor:
    """Compute the Frobenius norm of the derivative of each reading of a layer's output by each vector of its input.

    It replaces the map of a mechanism that has none. The layer is the mixer of the block if it has one, else the whole
    block with its residual path.

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
    # One call of the layer, or one for each tower.
    recorded = calls(model, batch, module)
    tower_readings = readings.unflatten(0, (-1, len(recorded))).unbind(1)
    tower_norms = []
    for call, call_readings in zip(recorded, tower_readings, strict=True):
        tower_norms.append(_call_jacobian(module, call, call_readings))
    return torch.stack(tower_norms, 1).flatten(0, 1)


def _call_jacobian(module: nn.Module, call: "ModuleCall", readings: Tensor) -> Tensor:
    """Compute the norms (N,R,L) of ``jacobian`` for one call of the layer and the readings of its sequences."""
    x, *arguments = call.args
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        out = module(x, *arguments)
        # A block returns a tuple, a mixer a tensor.
        if isinstance(out, tuple):
            out = out[0]  # (N,L,d)
        read = readings.to(out.dtype) @ out  # (N,R,d)

        # One backward pass per reading and feature; examples do not depend on each other.
        N, R, dim = read.shape
        L = x.shape[1]
        squares = x.new_zeros(N, R, L)
        for r, feature in np.ndindex(R, dim):
            total = read[:, r, feature].sum()
            (gradient,) = torch.autograd.grad(total, x, retain_graph=True)  # (N,L,d)
            square = gradient.square()
            squares[:, r] += square.sum(-1)
    return squares.sqrt()


class ModuleCall(NamedTuple):
    """The arguments of a call of a module."""

    args: tuple
    kwargs: dict[str, Any]


def calls(model: Classifier, batch: Batch, module: nn.Module) -> list[ModuleCall]:
    """Record every call of a module of a model on a batch."""
    recorded: list[ModuleCall] = []

    def record_arguments(_module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        recorded.append(ModuleCall(args, kwargs))

    hook = module.register_forward_pre_hook(record_arguments, with_kwargs=True)
    with hook, torch.no_grad():
        model(batch.inputs, batch.mask)
    return recorded
