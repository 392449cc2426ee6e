"""AdamW over one buffer for each group of parameters, by numbers that a table on the device holds for every step."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from . import optim as optimisers

ALIGNED = 64  # entries: each view begins on 256 bytes, or products of it would be computed by other kernels


class FlatGroup:
    """One group of an AdamW, its weights and moments side by side in buffers.

    The parameters of the model and the moments in the state of the optimiser become views of the buffers, so that the
    model computes with them and the optimiser's ``state_dict`` is what it is without this.

    The operations are those of ``torch.optim.AdamW(foreach=False, fused=False)`` in their order, hence the results on a
    CPU are the same bit for bit; the fused kernel rounds the last entries of a tensor in another way than the others.

    Args:
        optimiser: whose state is kept if it has one; its ``step`` is not to be called.
        group: of ``optimiser.param_groups``.
        made: steps that have been made.
    """

    @torch.no_grad()
    def __init__(self, optimiser: torch.optim.AdamW, group: dict, made: int):
        self.parameters: list[nn.Parameter] = group["params"]
        self.beta2, self.eps, self.weight_decay = group["betas"][1], group["eps"], group["weight_decay"]
        self.weights, views = side_by_side(self.parameters)
        for parameter, view in zip(self.parameters, views, strict=True):
            parameter.data = view
        self.gradients, self.gradient_views = side_by_side([torch.zeros_like(p) for p in self.parameters])
        before = [optimiser.state.get(p) or {} for p in self.parameters]
        kept = (
            [s.get(key, torch.zeros_like(p)) for s, p in zip(before, self.parameters, strict=True)] for key in MOMENTS
        )
        (self.first, first), (self.second, second) = map(side_by_side, kept)
        device = self.weights.device if group["fused"] else None  # as torch has it
        self.made = torch.full((len(views),), float(made), device=device)
        for i, p in enumerate(self.parameters):
            optimiser.state[p] = {"step": self.made[i], "exp_avg": first[i], "exp_avg_sq": second[i]}

    def update(self, row: Tensor) -> None:
        """Update the weights by ``gradients``; row (4,): of this step and group in ``coefficients``."""
        decay, weight, root, size = row.unbind()
        if self.weight_decay:
            self.weights.mul_(decay)
        self.first.lerp_(self.gradients, weight)
        self.second.mul_(self.beta2).addcmul_(self.gradients, self.gradients, value=1 - self.beta2)
        self.weights.addcdiv_(self.first * size, (self.second.sqrt() / root).add_(self.eps))


MOMENTS = ("exp_avg", "exp_avg_sq")


def side_by_side(tensors: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Copy tensors into one buffer, with zeros between them; returns the buffer and its views of their shapes."""
    sizes = [-(-t.numel() // ALIGNED) * ALIGNED for t in tensors]
    buffer = tensors[0].new_zeros(sum(sizes))
    views = [part[: t.numel()].view(t.shape) for part, t in zip(buffer.split(sizes), tensors, strict=True)]
    torch._foreach_copy_(views, list(tensors))
    return buffer, views


def coefficients(model: nn.Module, optim: Mapping, *, cycle_momentum: bool) -> Tensor:
    """Tabulate the numbers of AdamW that the schedule or the bias correction changes, as double, rounded once.

    Args:
        model: for its groups of parameters.
        optim: options of the optimiser and its schedule.
        cycle_momentum: whether a one-cycle schedule moves beta1.

    Returns:
        (steps, groups, 4) float32: 1 - lr weight_decay, 1 - beta1, √(1 - beta2^t), -lr / (1 - beta1^t); t is step + 1.
    """
    optimiser = optimisers.adamw(model, optim)
    schedule = optimisers.schedule(optimiser, optim, cycle_momentum=cycle_momentum)
    rows = []
    for t in range(1, optim["steps"] + 1):
        rows.append([_row(group, t) for group in optimiser.param_groups])
        optimiser.step()  # without gradients nothing happens; a schedule is used to follow it
        if schedule:
            schedule.step()
    return torch.tensor(rows, dtype=torch.float32)


def _row(group: dict, t: int) -> tuple[float, ...]:
    lr, (beta1, beta2) = group["lr"], group["betas"]
    return 1 - lr * group["weight_decay"], 1 - beta1, (1 - beta2**t) ** 0.5, -(lr / (1 - beta1**t))
