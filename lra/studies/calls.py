"""The mechanisms of a model, and their calls on a batch."""

import inspect
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..attention.base import Attention
from ..data.datamodule import Batch
from ..model.classifier import Classifier


def mechanisms(model: nn.Module) -> dict[str, Attention]:
    """List the mechanisms of a model by path, in order; a mechanism inside another one is part of it."""
    by_path: dict[str, Attention] = {}
    for path, module in model.named_modules():
        if isinstance(module, Attention) and not any(path.startswith(f"{outer}.") for outer in by_path):
            by_path[path] = module
    return by_path


class Intercepted(NamedTuple):
    """One call of a mechanism with its output (N,H,L,E)."""

    arguments: dict
    out: Tensor

    @property
    def real(self) -> Tensor:
        """Bool, broadcastable to (N,H,L,E): whether an entry of the output belongs to a real token."""
        mask = self.arguments.get("mask")
        return torch.ones_like(self.out[:1, :1, :1, :1], dtype=torch.bool) if mask is None else mask[:, None, :, None]


def calls(model: Classifier, batch: Batch, by_tower: bool = False) -> dict[str, list[Intercepted]]:
    """Record the calls of every mechanism of a model on a batch, by path.

    Args:
        model: model in evaluation mode.
        batch: batch of examples.
        by_tower: whether to make a call for each tower even if the model does not require it.
    """
    recorded: dict[str, list[Intercepted]] = {}

    def watch(path: str, module: nn.Module):
        signature = inspect.signature(module.forward)

        def keep(_, args, kwargs, out):
            recorded.setdefault(path, []).append(Intercepted(signature.bind(*args, **kwargs).arguments, out))

        return module.register_forward_hook(keep, with_kwargs=True)

    hooks = [watch(path, module) for path, module in mechanisms(model).items()]
    model_by_tower, model.by_tower = model.by_tower, model.by_tower or by_tower
    try:
        model(batch.inputs, batch.mask)
    finally:
        model.by_tower = model_by_tower
        for hook in hooks:
            hook.remove()
    return recorded
