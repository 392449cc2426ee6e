"""The plan of a configuration on this machine, and the checks that reject it before anything is written."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

import torch

from ..config.experiment import Experiment
from ..data.datamodule import TaskData
from ..runs import checkpoint, config_file, record
from ..runs.run_dir import RunDir
from . import device as devices
from .distributed import Processes, processes


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All seeds of one configuration, computed once at the start.

    Args:
        experiment: experiment with the padding in use instead of ``auto``.
        device: cpu | cuda.
        processes: processes that share each batch.
        data: data of the task, not yet set up; each seed has its own order of it.
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
        """The run directory of a seed."""
        return self.experiment.home / f"seed-{seed}"

    def more_seeds(self, seed: int) -> int:
        """Count the seeds after this one that have no record yet."""
        seeds = self.experiment.seeds
        later_seeds = seeds[seeds.index(seed) + 1 :]
        return sum(not (self.folder(later) / record.NAME).exists() for later in later_seeds)

    def messages(self) -> list[str]:
        """Describe the runs that follow, for the log. The data must be set up."""
        experiment = self.experiment
        optim = experiment.optim
        seeds = "1 seed" if len(experiment.seeds) == 1 else f"{len(experiment.seeds)} seeds"
        examples = len(self.data.splits["val"])
        megabytes = max(1, round(checkpoint.disk_bytes(self.params) / 2**20))
        messages = [
            f"{seeds} of {optim.steps:,} steps of {optim.batch}, "
            f"validation ({examples:,} examples) every {optim.eval_every}; {self.params:,} parameters; "
            f"about {megabytes} MB per seed in {experiment.home}"
        ]
        # Options that are valid but do not have their effect here.
        if self.device == "cpu" and experiment.trainer.precision == "bf16" and not devices.supports_bf16():
            messages.append("this processor has no bfloat16 instructions; trainer.precision=fp32 is faster here")
        if experiment.data.pad == "compact" and self.data.pad != "compact":
            messages.append("sequences keep their padding, because the result depends on its positions: data.pad=batch")
        if experiment.data.pad == "none" and not experiment.meta_model.packed:
            messages.append("sequences keep their padding, because the blocks need padded batches: data.pad=batch")
        return messages


def resolve(experiment: Experiment) -> Plan:
    """Compute the plan of a configuration.

    Raises:
        ValueError: this machine lacks a device, or no model or source can be made of the options.
    """
    device = devices.select_device(experiment.trainer.device, "trainer.device")
    if device == "cpu" and experiment.trainer.precision == "fp16":
        raise ValueError("trainer.precision=fp16 needs a GPU; on a CPU use fp32 or bf16")
    # The processes and the padding are known only on this machine.
    shared = processes(experiment)
    experiment = _with_padding(experiment)
    _check_batches(experiment, shared.count)
    # Building the model without memory for its weights checks its options.
    params = sum(parameter.numel() for parameter in experiment.meta_model.parameters())
    devices.check_memory(params)
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


def _with_padding(experiment: Experiment) -> Experiment:
    """Replace ``data.pad=auto`` by the padding of the seeds that have begun, or else of the task and the model."""
    if experiment.data.pad != "auto":
        return experiment
    pads = [experiment.padding]
    for path in sorted(experiment.home.glob(f"seed-*/{config_file.NAME}"), reverse=True):
        # A configuration that cannot be read is reported when its seed is run.
        with contextlib.suppress(ValueError):
            run_dir = RunDir(path=path.parent, choices={}, seed=0)
            pads.append(run_dir.saved_choices().get("data.pad"))
    # The first seed in the folder decides.
    valid_pads = [pad for pad in pads if pad in ("batch", "compact")]
    return experiment.replace(data=experiment.data.replace(pad=valid_pads[-1]))


def _check_batches(experiment: Experiment, count: int) -> None:
    """Raise ValueError unless the number of processes divides the batches; ``auto`` is known only here."""
    optim = experiment.optim
    key = "optim.micro_batch" if optim.micro_batch else "optim.batch"
    size = optim.micro_batch or optim.batch
    if size % count:
        raise ValueError(f"trainer.devices must divide {key} {size}, not {count}")
    if experiment.pretrained and not optim.micro_batch and experiment.pretrain.batch % count:
        raise ValueError(f"trainer.devices must divide pretrain.batch {experiment.pretrain.batch}, not {count}")


def check_data(experiment: Experiment, data: TaskData) -> None:
    """Check that the model and the loss of a task fit its data.

    Args:
        experiment: experiment of the run.
        data: data, set up.

    Raises:
        ValueError: labels or tokens do not fit the options of the task.
    """
    for name, split in data.splits.items():
        _check_labels(experiment, name, split.labels)
        has_tokens = hasattr(split, "tokens")
        # A memory-mapped split has no tensor of all tokens; its first examples have the same type.
        tokens = split.tokens if has_tokens else split.gather(torch.arange(min(64, len(split))), 64)[0]
        _check_tokens(experiment, name, tokens)


def _check_labels(experiment: Experiment, name: str, labels: torch.Tensor) -> None:
    task = experiment.task
    is_regression = labels.is_floating_point()
    if is_regression != (task.loss == "mse"):
        expected, kind = ("mse", "real numbers") if is_regression else ("cross_entropy", "classes")
        raise ValueError(f"task.loss must be {expected} for labels of {name} that are {kind}, not {task.loss}")
    if is_regression:
        return
    largest = int(labels.max())
    smallest = int(labels.min())
    if largest >= task.outputs:
        raise ValueError(f"task.outputs must be above the largest label of {name}, {largest}")
    if smallest < 0:
        raise ValueError(f"labels must be 0 or more, not {smallest}, the smallest of {name}")


def _check_tokens(experiment: Experiment, name: str, tokens: torch.Tensor) -> None:
    task = experiment.task
    takes_features = task.features is not None
    takes_tokens = task.vocab is not None
    if tokens.is_floating_point() != takes_features or takes_features == takes_tokens:
        key = "features" if tokens.is_floating_point() else "vocab"
        raise ValueError(f"task={task.name} needs {key} alone")
    if takes_features and tokens.shape[-1] != task.features:
        raise ValueError(f"task.features must be {tokens.shape[-1]}, not {task.features}")
    if takes_tokens:
        # With model.pool=cls the last id of the vocabulary is the class token.
        class_ids = int(experiment.model.pool == "cls")
        last = int(tokens.max()) + task.shift
        if last >= task.vocab - class_ids:
            reason = f"{last + 1}, the class token's" if class_ids else f"{last} with task.shift={task.shift}"
            raise ValueError(f"task.vocab must be above the largest id of {name}, {reason}")


def check_pretraining(experiment: Experiment) -> None:
    """Check that the options of phase one fit the task and the model.

    Raises:
        ValueError: inputs are always masked, there is a class token, the loss or mask id does not exist for the task,
            or the mechanism sees the next token.
    """
    task = experiment.task
    pretrain = experiment.pretrain
    option = f"pretrain={pretrain.objective}"
    is_pixels = task.display == "pixels"
    is_real = task.features is not None
    if task.masked_id is not None:
        masked_pixel = experiment.protocol.masked_pixel
        reason = "which pixels are masked would reveal the image"
        raise ValueError(f"protocol.masked_pixel must be null with {option}, not {masked_pixel}: {reason}")
    if experiment.model.pool in ("cls", "class"):
        raise ValueError(f"model.pool must be mean, last or flatten with {option}, not {experiment.model.pool}")
    if is_real and pretrain.loss != "l1":
        raise ValueError(f"pretrain.loss must be l1 with task={task.name}, whose inputs are real numbers")
    if task.vocab is not None and pretrain.loss == "l1" and not is_pixels:
        raise ValueError(f"pretrain.loss must be cross_entropy with task={task.name}, whose inputs are no grey levels")
    if pretrain.mask_id == "padding" and (is_pixels or is_real):
        raise ValueError(f"pretrain.mask_id must be own with task={task.name}, which has no id of padding")
    if pretrain.objective == "next":
        _check_causal(experiment)


def _check_causal(experiment: Experiment) -> None:
    """Raise ValueError unless every block is causal."""
    # A block without a mixer may pass information to earlier tokens.
    mixers = [getattr(block, "mixer", None) for block in experiment.meta_model.blocks]
    if all(getattr(mixer, "causal", False) for mixer in mixers):
        return
    if experiment.attn.get("causal") is False:
        remedy = "say attn.causal=true"
    elif experiment.attn.get("bidirectional"):
        remedy = "say attn.bidirectional=false"
    else:
        causal = "sdpa, linear, conv, sparse with attn.causal=true"
        remedy = f"{causal} and s4d_*, s5, lru, long_conv with attn.bidirectional=false do not"
    raise ValueError(f"pretrain=next: {experiment.label} sees the tokens ahead; {remedy}")
