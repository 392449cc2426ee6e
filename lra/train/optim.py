"""The optimiser, its parameter groups, and the learning-rate schedules."""

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from ..model.norm import ScaleNorm

# Normalisations, torch's own and ours, that have no weight decay with ``bias_decay=false``.
NORM_TYPES = (nn.LayerNorm, nn.RMSNorm, nn.BatchNorm1d, ScaleNorm)
# Learning rate at which a warm-up begins.
WARMUP_START = 1e-7


def parameter_groups(model: nn.Module, optim: Mapping) -> list[dict]:
    """Group the parameters of a model by learning rate and weight decay.

    A module may have ``rates``, factors of the learning rate by parameter name. The learning rate of these parameters
    is at most ``own_lr_max``, and they have no weight decay unless they are among its ``decayed`` (state-space models,
    as in the code of S4, Gu et al. 2022). With ``bias_decay=false``, biases and norms between the embedding and the
    head have no decay either. All other parameters are the first group.

    Args:
        model: the model.
        optim: options of the optimiser.
    """
    # Rules by parameter: a factor of the learning rate (None for the rate itself), and whether there is decay.
    rules: dict[int, tuple[float | None, bool]] = {}
    if not optim.get("bias_decay", True):
        for parameter in _biases_and_norms(model):
            rules[id(parameter)] = (None, False)
    for module in model.modules():
        decayed_names = getattr(module, "decayed", ())
        factors = getattr(module, "rates", {})
        for name, factor in factors.items():
            parameter = getattr(module, name)
            rules[id(parameter)] = (factor, name in decayed_names)

    # Groups of equal rules, in the order of the parameters.
    main_parameters: list[nn.Parameter] = []
    groups: dict[tuple[float | None, bool], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        rule = rules.get(id(parameter))
        if rule is None:
            main_parameters.append(parameter)
        else:
            groups.setdefault(rule, []).append(parameter)

    result: list[dict] = [{"params": main_parameters}] if main_parameters else []
    max_lr = optim.get("own_lr_max") or math.inf
    for (factor, has_decay), parameters in groups.items():
        lr = optim["lr"]
        if factor is not None:
            lr = min(factor * lr, max_lr)
        weight_decay = optim["weight_decay"] if has_decay else 0.0
        result.append({"params": parameters, "lr": lr, "weight_decay": weight_decay})
    return result


def _biases_and_norms(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the biases and the parameters of norms of an encoder, without its embedding and head."""
    for path, module in model.named_modules():
        parts = path.split(".")
        if "embed" in parts or "head" in parts:
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, NORM_TYPES) or name == "bias":
                yield parameter


def adamw(model: nn.Module, optim: Mapping) -> torch.optim.AdamW:
    """Make AdamW, fused unless gradients are clipped."""
    # With fp16 a fused optimiser unscales gradients by itself, after they have been clipped.
    is_clipped = bool(optim.get("clip_norm"))
    return torch.optim.AdamW(
        parameter_groups(model, optim),
        lr=optim["lr"],
        betas=tuple(optim["betas"]),
        eps=optim["eps"],
        weight_decay=optim["weight_decay"],
        fused=not is_clipped,
    )


def schedule(optimiser: torch.optim.AdamW, optim: Mapping, *, cycle_momentum: bool) -> LRScheduler | None:
    """Make the schedule ``optim.schedule`` for every parameter group, relative to the learning rate of the group.

    Args:
        optimiser: the optimiser.
        optim: options of the schedule.
        cycle_momentum: whether the one-cycle schedule also moves beta1.

    Returns:
        The schedule; None for a constant learning rate without warm-up.
    """
    if optim["schedule"] == "one_cycle":
        return OneCycleLR(
            optimiser,
            max_lr=[group["lr"] for group in optimiser.param_groups],
            total_steps=optim["steps"],
            pct_start=optim["warmup"] / optim["steps"],
            anneal_strategy="linear",
            cycle_momentum=cycle_momentum,
        )
    # Other schedules are functions of the step; LambdaLR multiplies the rate of each group by rate / lr.
    if optim["schedule"] == "constant" and not optim["warmup"]:
        return None
    schedules: dict[str, Callable[[int, Mapping], float]] = {"constant": warm_up, "linear": linear, "cosine": cosine}
    rate = schedules[optim["schedule"]]
    return LambdaLR(optimiser, lambda step: rate(step, optim) / optim["lr"])


def linear(step: int, optim: Mapping) -> float:
    """Learning rate of a step (steps count from 0): warm-up to lr, then linear decay to 0 at ``optim.steps`` (MEGA)."""
    warmup = optim["warmup"]
    if step <= warmup:
        return warm_up(step, optim)
    steps_left = optim["steps"] - step
    return optim["lr"] * steps_left / (optim["steps"] - warmup)


def cosine(step: int, optim: Mapping) -> float:
    """Learning rate of a step: warm-up to lr, then half a cosine from lr to 0 (S4, S5 and LRU).

    The cosine lasts from the end of the warm-up to ``optim.steps``; ``optim.cosine`` = [first, last] sets other steps.
    A part of the cosine during the warm-up is skipped. Between warm-up and cosine the rate is lr, after the cosine 0.
    """
    if step <= optim["warmup"]:
        return warm_up(step, optim)
    first, last = optim.get("cosine") or (optim["warmup"], optim["steps"])
    progress = min(max(0.0, (step - first) / (last - first)), 1.0)
    return optim["lr"] * (1 + math.cos(math.pi * progress)) / 2


def warm_up(step: int, optim: Mapping) -> float:
    """Learning rate of a step: from 1e-7 to lr as step^warmup_power during the warm-up, then lr."""
    lr = optim["lr"]
    warmup = optim["warmup"]
    if not warmup:
        return lr
    progress = min(step, warmup) / warmup
    return WARMUP_START + (lr - WARMUP_START) * progress ** optim["warmup_power"]
