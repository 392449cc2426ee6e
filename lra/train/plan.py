"""The plan of a configuration on this machine, and what it refuses before anything is written."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

import torch

from ..config.experiment import Experiment
from ..data.datamodule import TaskData
from ..runs import config_file, record
from . import machine
from .distributed import Processes, processes


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All seeds of one configuration, computed once at the start and handed down.

    Args:
        experiment: experiment with the padding in use instead of ``auto``.
        device: cpu | cuda.
        processes: processes that share each batch.
        data: data of the task, not yet set up; a seed has its own order of it.
        params: number of parameters of the model.
        title: task and label.
    """

    experiment: Experiment
    device: str
    processes: Processes
    data: TaskData
    params: int
    title: str

    def folder(self, seed: int) -> Path:
        return self.experiment.home / f"seed-{seed}"

    def more_seeds(self, seed: int) -> int:
        """The number of seeds after this one that have no record yet."""
        after = self.experiment.seeds[self.experiment.seeds.index(seed) + 1 :]
        return sum(not (self.folder(later) / record.NAME).exists() for later in after)


def resolve(experiment: Experiment) -> Plan:
    """Compute the plan of a configuration.

    Raises:
        ValueError: this machine lacks a device, or no model or source can be made of the options.
    """
    device = machine.chosen(experiment.trainer.device, "trainer.device")
    if device == "cpu" and experiment.trainer.precision == "fp16":
        raise ValueError("trainer.precision=fp16 needs a GPU; on a CPU use fp32 or bf16")
    shared, o = processes(experiment), experiment.optim
    experiment = _padded(experiment)
    if (o.micro_batch or o.batch) % shared.count:  # auto and launched are known only here
        key = "optim.micro_batch" if o.micro_batch else "optim.batch"
        raise ValueError(f"trainer.devices must divide {key} {o.micro_batch or o.batch}, not {shared.count}")
    if experiment.pretrained and not o.micro_batch and experiment.pretrain.batch % shared.count:
        raise ValueError(f"trainer.devices must divide pretrain.batch {experiment.pretrain.batch}, not {shared.count}")
    params = sum(p.numel() for p in experiment.sketch.parameters())
    machine.check_memory(params)
    if experiment.pretrained:
        check_pretraining(experiment)
    return Plan(
        experiment=experiment,
        device=device,
        processes=shared,
        data=experiment.task_data(),
        params=params,
        title=f"{experiment.task.name} {experiment.label}",
    )


def _padded(experiment: Experiment) -> Experiment:
    """The experiment with the padding of the seeds begun in its folder, or of its task and model, for ``auto``."""
    if experiment.data.pad != "auto":
        return experiment
    pads = [experiment.padding]
    for path in sorted(experiment.home.glob(f"seed-*/{config_file.NAME}"), reverse=True):
        with contextlib.suppress(ValueError):  # the seed of that folder says so
            pads.append(config_file.read(path).get("data.pad"))
    pad = [pad for pad in pads if pad in ("batch", "compact")][-1]
    return experiment.changed(data=experiment.data.changed(pad=pad))


def check_data(experiment: Experiment, data: TaskData) -> None:
    """Check that the model and the loss of a task are made for its data.

    Args:
        experiment: experiment of the run.
        data: data, set up.

    Raises:
        ValueError: labels or tokens do not fit the options of the task.
    """
    task, kind = experiment.task, experiment.task.loss
    real_rows = task.features is not None
    for name, split in data.splits.items():
        real = split.labels.is_floating_point()
        if real != (kind == "mse"):
            wanted, labels = ("mse", "real numbers") if real else ("cross_entropy", "classes")
            raise ValueError(f"task.loss must be {wanted} for labels that are {labels}, as those of {name}, not {kind}")
        if not real and int(split.labels.max()) >= task.outputs:
            raise ValueError(f"task.outputs must be above the largest label of {name}, {int(split.labels.max())}")
        if not real and int(split.labels.min()) < 0:
            raise ValueError(f"labels must be 0 or more, not {int(split.labels.min())}, the least of {name}")
        tokens = split.tokens if hasattr(split, "tokens") else split.gather(torch.arange(min(64, len(split))), 64)[0]
        if tokens.is_floating_point() != real_rows or real_rows == (task.vocab is not None):
            raise ValueError(f"task={task.name} needs {'features' if tokens.is_floating_point() else 'vocab'} alone")
        if real_rows and tokens.shape[-1] != task.features:
            raise ValueError(f"task.features must be {tokens.shape[-1]}, not {task.features}")
        own = experiment.model.pool == "cls"  # the last id is that of the class token
        if task.vocab is not None and (last := int(tokens.max()) + task.shift) >= task.vocab - own:
            above = f"{last + own}, the class token's" if own else f"{last} with task.shift={task.shift}"
            raise ValueError(f"task.vocab must be above the largest id of {name}, {above}")


def check_pretraining(experiment: Experiment) -> None:
    """Check that phase one can be made as a configuration says.

    Raises:
        ValueError: inputs are masked for good, there is a class token, the loss or mask id is none of the task's, or
            the mechanism sees the next token.
    """
    task, own = experiment.task, experiment.pretrain
    said, pixels = f"pretrain={own.objective}", task.display == "pixels"
    if task.masked_id is not None:
        reason = "which pixels are masked would tell the picture"
        raise ValueError(
            f"protocol.masked_pixel must be null with {said}, not {experiment.protocol.masked_pixel}: {reason}"
        )
    if experiment.model.pool in ("cls", "class"):
        raise ValueError(f"model.pool must be mean, last or flatten with {said}, not {experiment.model.pool}")
    if task.features is not None and own.loss != "l1":
        raise ValueError(f"pretrain.loss must be l1 with task={task.name}, whose inputs are real numbers")
    if task.vocab is not None and own.loss == "l1" and not pixels:
        raise ValueError(f"pretrain.loss must be cross_entropy with task={task.name}, whose inputs are no grey levels")
    if own.mask_id == "padding" and (pixels or task.features is not None):
        raise ValueError(f"pretrain.mask_id must be own with task={task.name}, which has no id of padding")
    # A block that is more than a mixer may pass something from a token to those before it.
    causal = (getattr(getattr(block, "mixer", None), "causal", False) for block in experiment.sketch.blocks)
    if own.objective == "next" and not all(causal):
        able = "sdpa, linear, conv, sparse with attn.causal=true"
        remedy = f"{able} and s4d_*, s5, lru, long_conv with attn.bidirectional=false do not"
        if experiment.attn.get("causal") is False:
            remedy = "say attn.causal=true"
        elif experiment.attn.get("bidirectional"):
            remedy = "say attn.bidirectional=false"
        raise ValueError(f"pretrain=next: {experiment.label} sees the tokens ahead; {remedy}")
