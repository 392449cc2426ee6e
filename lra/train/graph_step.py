"""A training step as a function of weights, optimiser state, step number and tables, all of them on one device."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from ..data.datamodule import Batch
from .flat_adamw import FlatGroup


@dataclass(frozen=True)
class State:
    """The tensors that a step changes, in place.

    Args:
        groups: of the optimiser, with the weights, the gradients and the moments.
        number: (1,) int64, steps that were made.
    """

    groups: list[FlatGroup]
    number: Tensor

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.groups for parameter in group.parameters]


@dataclass(frozen=True)
class Tables:
    """The numbers of every step of a run.

    Args:
        order: (steps, batch) int32, the examples.
        coefficients: (steps, groups, 4) float32, see ``flat_adamw``.
    """

    order: Tensor
    coefficients: Tensor


def step(
    state: State,
    tables: Tables,
    *,
    gather: Callable[[Tensor], Batch],
    loss: Callable[[Batch], Tensor],
    clip_norm: float | None,
) -> Tensor:
    """Make one step: gather the batch, forward, backward, clip, AdamW. The host neither reads nor copies anything.

    Args:
        state: changed in place.
        tables: of the run.
        gather: examples (batch,) int64 -> their batch.
        loss: mean of a batch.
        clip_norm: longest gradient, in the 2-norm over all parameters; None: any.

    Returns:
        The loss, (), of the weights before the step.

    Raises:
        ValueError: a parameter has no gradient, so AdamW would have to leave it as it is.
    """
    value = loss(gather(tables.order.index_select(0, state.number)[0].long()))
    gradients = torch.autograd.grad(value, state.parameters, allow_unused=True)
    if any(gradient is None for gradient in gradients):
        raise ValueError("trainer=graph needs a gradient of every parameter, and this model has some without")
    with torch.no_grad():
        views = [view for group in state.groups for view in group.gradient_views]
        torch._foreach_copy_(views, gradients)
        if clip_norm:
            scale = (clip_norm / (get_total_norm(views) + 1e-6)).clamp(max=1.0)  # as clip_grad_norm_ has it
            for group in state.groups:
                group.gradients.mul_(scale)
        rows = tables.coefficients.index_select(0, state.number)[0]
        for group, row in zip(state.groups, rows.unbind(), strict=True):
            group.update(row)
        state.number.add_(1)
    return value.detach()
