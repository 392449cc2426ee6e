"""The plan of a configuration on this machine, and the checks that reject it before anything is written."""

from dataclasses import dataclass

import torch

from ..config.experiment import Experiment
from ..config.schema import Optim, Pretrain, Task
from ..console import plural
from ..data.datamodule import TaskData
from ..ops.precision import emulates_bf16
from ..runs import checkpoint
from ..runs.reader import SeedDirs
from . import device as devices
from .distributed import Processes, find_processes


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All seeds of one configuration, computed once at the start.

    Args:
        experiment: experiment in which the padding ``auto`` is replaced by the padding in use.
        device: cpu | cuda.
        processes: processes that share each batch.
        data: data of the task, not yet set up. The training of a seed makes its own, in the order of that seed
            (``Experiment.task_data``).
        params: number of parameters of the model.
        title: task and label.
    """

    experiment: Experiment
    device: str
    processes: Processes
    data: TaskData
    params: int
    title: str

    def count_later_seeds(self, seed: int) -> int:
        """Count the seeds after this one."""
        seeds = self.experiment.seeds
        return len(seeds) - 1 - seeds.index(seed)

    @property
    def disk_bytes(self) -> int:
        """Disk space of a seed."""
        # Pretraining has checkpoints as well.
        num_phases = 2 if self.experiment.pretrained else 1
        return num_phases * checkpoint.disk_bytes(self.params)

    def messages(self) -> list[str]:
        """Describe the runs that follow, for the log. The data must be set up."""
        experiment = self.experiment
        optim = experiment.optim
        seeds = plural(len(experiment.seeds), "seed")
        examples = len(self.data.splits["val"])
        megabytes = max(1, round(self.disk_bytes / 2**20))
        messages = [
            f"{seeds}, {plural(optim.steps, 'step')} with batch size {optim.batch}, "
            f"validation on {plural(examples, 'example')} every {plural(optim.eval_every, 'step')}; "
            f"{self.params:,} parameters; about {megabytes} MB per seed in {experiment.home}"
        ]
        messages += _describe_cut_sequences(self.data)
        # Options that are valid but do not have their effect here.
        if emulates_bf16(self.device, experiment.trainer.precision):
            messages.append("this processor has no bfloat16 instructions; trainer.precision=fp32 is faster here")
        if experiment.data.pad == "compact" and self.data.pad != "compact":
            messages.append("masked pixels are kept, because the result depends on where they are: data.pad=batch")
        model = experiment.meta_model
        if experiment.data.pad == "none" and self.device == "cpu" and not model.packed:
            if model.grouped:
                message = "sequences are padded in groups of similar lengths, because the blocks cannot pack them"
            else:
                message = "sequences keep their padding, because results depend on the batch: data.pad=batch"
            messages.append(message)
        return messages


def make_plan(experiment: Experiment) -> Plan:
    """Compute the plan of a configuration.

    Raises:
        ValueError: this machine lacks a device, or the options do not define a valid model or source.
    """
    device = devices.select_device(experiment.trainer.device, "trainer.device")
    if device == "cpu" and experiment.trainer.precision == "fp16":
        raise ValueError("trainer.precision=fp16 needs a GPU; on a CPU use fp32 or bf16")
    # The processes and the padding are known only on this machine.
    processes = find_processes(experiment.trainer)
    check_batches(experiment.optim, experiment.pretrain, processes.count)
    if experiment.data.pad == "auto":
        # The seeds of a configuration have the same padding.
        padding = SeedDirs(experiment.home).saved_padding() or experiment.padding
        experiment = experiment.replace(data=experiment.data.replace(pad=padding))
    # Building the model without memory for its weights checks its options.
    params = sum(parameter.numel() for parameter in experiment.meta_model.parameters())
    devices.check_memory(params)
    if experiment.pretrained:
        experiment.check_pretraining()
    if experiment.pretrain.objective == "next":
        check_causal(experiment)
    if experiment.model.pool in ("cls", "class") and is_causal(experiment):
        reason = "a causal mechanism shows it no other token; use model.pool=last"
        raise ValueError(f"model.pool={experiment.model.pool} puts the class token in front, where {reason}")
    return Plan(
        experiment=experiment,
        device=device,
        processes=processes,
        data=experiment.task_data(),
        params=params,
        title=f"{experiment.task.name} {experiment.label}",
    )


def check_batches(optim: Optim, pretrain: Pretrain, count: int) -> None:
    """Raise ValueError unless ``count`` processes divide the micro-batch or, without one, the batch of each phase."""
    batches = {"optim.batch": optim.batch, "pretrain.batch": pretrain.batch}
    if optim.micro_batch:
        batches = {"optim.micro_batch": optim.micro_batch}
    for option, size in batches.items():
        # A run without pretraining has no pretrain.batch.
        if size is not None and size % count:
            raise ValueError(f"trainer.devices must divide {option} {size}, got {count}")


def is_causal(experiment: Experiment) -> bool:
    """Return whether no block passes information to earlier tokens."""
    # A block without a mixer may pass it.
    mixers = [getattr(block, "mixer", None) for block in experiment.meta_model.blocks]
    return all(getattr(mixer, "causal", False) for mixer in mixers)


def check_causal(experiment: Experiment) -> None:
    """Raise ValueError unless every block is causal."""
    if is_causal(experiment):
        return
    if experiment.attn.get("causal") is False:
        remedy = "add attn.causal=true"
    elif experiment.attn.get("bidirectional"):
        remedy = "add attn.bidirectional=false"
    else:
        causal = "a mechanism with the option attn.causal, such as sdpa or mamba2"
        remedy = f"use {causal}, or s4d_*, s5, lru or long_conv with attn.bidirectional=false"
    raise ValueError(f"pretrain=next: {experiment.label} sees the tokens ahead; {remedy}")


def check_labels_and_tokens(task: Task, data: TaskData, *, has_class_id: bool = False) -> None:
    """Check that the model and the loss of a task fit its data.

    Args:
        task: options of the task.
        data: data, set up.
        has_class_id: whether the last id of the vocabulary is reserved for the class token, as with ``model.pool=cls``.

    Raises:
        ValueError: labels or tokens do not fit the options of the task.
    """
    for name, split in data.splits.items():
        _check_labels(task, name, split.labels)
        # A split whose examples are generated on reading has no tensor of all tokens: check its first examples.
        if hasattr(split, "tokens"):
            tokens = split.tokens
        else:
            first_examples = torch.arange(min(64, len(split)))
            tokens = split.gather(first_examples, 64)[0]
        _check_tokens(task, name, tokens, has_class_id)


def _check_labels(task: Task, name: str, labels: torch.Tensor) -> None:
    if labels.is_floating_point():
        if task.loss != "mse":
            raise ValueError(f"task.loss must be mse, not {task.loss}: labels of the {name} set are real numbers")
        return
    if task.loss == "mse":
        raise ValueError(f"task.loss must be cross_entropy, not mse: labels of the {name} set are classes")
    largest = int(labels.max())
    smallest = int(labels.min())
    if largest >= task.outputs:
        reason = f"the largest label of the {name} set"
        raise ValueError(f"task.outputs must be above {largest}, {reason}, not {task.outputs}")
    if smallest < 0:
        raise ValueError(f"labels must be 0 or more; the smallest label of the {name} set is {smallest}")


def _check_tokens(task: Task, name: str, tokens: torch.Tensor, has_class_id: bool) -> None:
    # Real features, or token ids.
    if tokens.is_floating_point():
        if task.features is None or task.vocab is not None:
            raise ValueError(f"task={task.name} has inputs of real numbers; set task.features and leave out task.vocab")
        if tokens.shape[-1] != task.features:
            raise ValueError(f"task.features must be {tokens.shape[-1]}, not {task.features}")
        return
    if task.vocab is None or task.features is not None:
        raise ValueError(f"task={task.name} has inputs of token ids; set task.vocab and leave out task.features")
    last_id = int(tokens.max()) + task.shift
    if has_class_id and last_id + 1 >= task.vocab:
        raise ValueError(f"task.vocab must be above {last_id + 1}, the id of the class token, not {task.vocab}")
    if last_id >= task.vocab:
        reason = f"the largest token id of the {name} set with task.shift={task.shift}"
        raise ValueError(f"task.vocab must be above {last_id}, {reason}, not {task.vocab}")


def _describe_cut_sequences(data: TaskData) -> list[str]:
    """Warn of training sequences that are cut: an expression without its end has no answer."""
    # Texts, genomes and images are cut on purpose.
    if not data.source.generated:
        return []
    lengths = data.splits["train"].lengths
    num_cut = int((lengths > data.limit).any(1).sum())
    if not num_cut:
        return []
    share = f"{num_cut:,} of {len(lengths):,} training sequences"
    return [f"warning: {share} are longer than {data.limit:,} tokens (task.limit and task.length) and lose their end"]
