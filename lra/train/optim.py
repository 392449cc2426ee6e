"""The optimiser and its learning rate, step by step."""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from ..model.norm import NORMS


def parameter_groups(model: nn.Module, optim: Mapping) -> list[dict]:
    """Group the parameters of a model by learning rate and weight decay.

    A module may have ``rates``, factors of the learning rate by the names of its own parameters; these have no weight
    decay (state-space models: Gu et al. 2022, section 4.1 of S4) unless they are among its ``decayed``. Their rate is
    at most ``own_lr_max``, if that is set. Without ``bias_decay`` biases and norms between the embedding and the head
    have no decay either. Everything else is the first group.
    """
    special = {
        id(getattr(module, name)): (factor, name in getattr(module, "decayed", ()))
        for module in model.modules()
        for name, factor in getattr(module, "rates", {}).items()
    }
    if not optim.get("bias_decay", True):
        special = dict.fromkeys(map(id, _biases_and_norms(model)), (None, False)) | special
    groups: dict[tuple[float | None, bool] | None, list[nn.Parameter]] = {None: []}
    for parameter in model.parameters():
        groups.setdefault(special.get(id(parameter)), []).append(parameter)
    main = groups.pop(None)
    most = optim.get("own_lr_max") or math.inf
    rate = lambda factor: optim["lr"] if factor is None else min(factor * optim["lr"], most)
    rest = [
        {"params": parameters, "lr": rate(factor), "weight_decay": optim["weight_decay"] if decayed else 0.0}
        for (factor, decayed), parameters in groups.items()
    ]
    return [{"params": main}, *rest] if main else rest


def _biases_and_norms(model: nn.Module) -> Iterator[nn.Parameter]:
    """The biases and the parameters of norms of an encoder, without those of its embedding and head."""
    for path, module in model.named_modules():
        if not {"embed", "head"} & set(path.split(".")):
            every = isinstance(module, tuple(NORMS.values()))
            yield from (p for name, p in module.named_parameters(recurse=False) if every or name == "bias")


def adamw(model: nn.Module, optim: Mapping) -> torch.optim.AdamW:
    """Make AdamW with one launch for the parameters of a group."""
    clipped = bool(optim.get("clip_norm"))  # under fp16 a fused optimiser unscales by itself, too late for clipping
    return torch.optim.AdamW(
        parameter_groups(model, optim),
        lr=optim["lr"],
        betas=tuple(optim["betas"]),
        eps=optim["eps"],
        weight_decay=optim["weight_decay"],
        fused=not clipped,
    )


def schedule(optimiser: torch.optim.AdamW, optim: Mapping, *, cycle_momentum: bool) -> LRScheduler | None:
    """Make the schedule of ``optim.schedule`` for every group, each a multiple of its own rate; None without one."""
    if optim["schedule"] == "one_cycle":
        return OneCycleLR(
            optimiser,
            max_lr=[group["lr"] for group in optimiser.param_groups],
            total_steps=optim["steps"],
            pct_start=optim["warmup"] / optim["steps"],
            anneal_strategy="linear",
            cycle_momentum=cycle_momentum,
        )
    if optim["schedule"] == "constant" and not optim["warmup"]:
        return None
    rate = {"constant": warm_up, "linear": linear, "cosine": cosine}[optim["schedule"]]
    return LambdaLR(optimiser, lambda step: rate(step, optim) / optim["lr"])


def linear(step: int, optim: Mapping) -> float:
    """Learning rate of a step: up to lr in the warm-up, then straight down to 0 (MEGA's)."""
    if step <= optim["warmup"]:
        return warm_up(step, optim)
    return optim["lr"] * (optim["steps"] - step) / (optim["steps"] - optim["warmup"])


def cosine(step: int, optim: Mapping) -> float:
    """Learning rate of a step: up to lr in the warm-up, then along half a cosine (S4's, S5's and LRU's).

    The cosine begins at lr and ends at 0, at the two steps of ``optim.cosine``: those of the warm-up's end and of the
    last step unless it says others. After it the rate is 0.
    """
    if step <= optim["warmup"]:
        return warm_up(step, optim)
    first, last = optim.get("cosine") or (optim["warmup"], optim["steps"])
    done = min(1.0, (step - first) / (last - first))
    return optim["lr"] * (1 + math.cos(math.pi * done)) / 2


def warm_up(step: int, optim: Mapping) -> float:
    """Learning rate of a step: from 1e-7 to lr as step^warmup_power in the warm-up, then lr."""
    lr, warmup, start = optim["lr"], optim["warmup"], 1e-7
    return lr if not warmup else start + (lr - start) * (min(step, warmup) / warmup) ** optim["warmup_power"]
