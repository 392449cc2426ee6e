"""Swap the mechanism of a finished run: its experiment, its weights, and the options that choose the new one."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ..config.base import Section
from ..config.experiment import Experiment
from ..config.options import MechanismOptions
from ..config.schema import Above, BatchSize, Block, Loggers, Name, Optim, Root, Trainer, Trust, omittable
from ..config.target import Target
from ..evaluate.restore import load_best_model, restore_experiment
from ..model.classifier import Classifier
from ..options import Positive, Whole
from ..runs.run_dir import RunDir
from .qkv import mechanisms


class TuningOptions(Section):
    """The optimiser of the fine-tuning; None is the run's value of ``lr`` and ``batch``, a default for the others."""

    lr: Above | None
    batch: BatchSize | None
    warmup: Whole | None
    eval_every: Positive | None


class TransferDataOptions(Root):
    """The folder of the data sets, and the batch size of the evaluation; None: the training batch size of the run."""

    eval_batch: BatchSize | None


class TransferOptions(MechanismOptions):
    """The options of conf/transfer.yaml."""

    conf: ClassVar[str] = "transfer"

    run: Annotated[Path, Field(description="a finished run: run=runs/<study>/<task>/<label>")]
    trust: Trust
    block: Block = omittable()
    trainer: Trainer
    logger: Loggers = Field({})
    steps: Whole
    examples: Positive
    spectrum: Whole
    optim: TuningOptions
    study: Name | None
    runs: Path
    data: TransferDataOptions

    @classmethod
    def check_unresolved(cls, tree: Mapping[str, Any]) -> None:
        if "task" in tree:
            raise ValueError("a transfer has the task of its run; leave out task=")

    def check(self) -> None:
        for key, value in self.optim:
            if value is not None and not self.steps:
                raise ValueError(f"optim.{key} is an option of the fine-tuning; add steps=<number>")


def experiments(run: RunDir, options: TransferOptions) -> tuple[Experiment, Experiment]:
    """Restore the experiment of a finished run, and derive the one with the mechanism and fine-tuning of a transfer.

    Args:
        run: a finished run.
        options: options of the transfer.

    Returns:
        The run's experiment ``source``, and the experiment ``target`` with the other mechanism.

    Raises:
        ValueError: the mechanism has another ``attn.weights`` than the run, and no override sets it.
    """
    source = restore_experiment(run, options.data.root)
    overrides = [override.lstrip("+~") for override in options.command_overrides]
    # The machine, the loggers and the batch size of the evaluation come from the transfer, the rest from the run: its
    # precision too, unless the command sets trainer.precision.
    trainer = options.trainer
    if not any(override.startswith("trainer.precision=") for override in overrides):
        trainer = trainer.replace(precision=source.trainer.precision)
    data = source.data.replace(eval_batch=options.data.eval_batch or source.optim.batch)
    source = source.replace(
        runs=options.runs,
        logger=options.logger,
        multirun=options.multirun,
        trainer=trainer,
        data=data,
    )

    # class_token=null means that the class token is selected if the run has one. Another value, and a mechanism without
    # the option, stay as they are.
    attn = options.attn
    if attn.get("class_token", False) is None:
        attn = attn.replace(class_token=source.model.has_class_token)

    # Another kind of attention weights than the run's must be asked for.
    if not any(override.startswith("attn.weights=") for override in overrides):
        _check_attention_weights(run, source.attn, attn, options.label)

    block = source.block
    if options.block:
        block = _block(source.block, options.block, overrides)
    target = source.replace(
        attn=attn,
        label=options.label,
        study=options.study or run.result.study,
        block=block,
        optim=_optim(source.optim, options),
    )
    return source, target


def _check_attention_weights(run: RunDir, run_attn: Target, new_attn: Target, label: str) -> None:
    """Raise ValueError if two mechanisms have different kinds of attention weights, such as softmax and laplace."""
    old_weights = _attention_weights(run_attn)
    new_weights = _attention_weights(new_attn)
    if None in (old_weights, new_weights) or old_weights == new_weights:
        return
    # Hydra adds an option that the configuration does not have only with a plus.
    plus = "" if "weights" in new_attn.options else "+"
    raise ValueError(
        f"{run.path} has attn.weights={old_weights} and attn={label} has {new_weights}; "
        f"add {plus}attn.weights={old_weights}"
    )


def _attention_weights(attn: Target) -> str | None:
    """Return the option ``weights`` of a mechanism, or the default of its class; None if it lacks the option."""
    parameter = inspect.signature(attn.function).parameters.get("weights")
    return None if parameter is None else attn.get("weights", parameter.default)


def _optim(run_optim: Optim, options: TransferOptions) -> Optim:
    """Return the run's optimiser with the learning rate, the batch and the schedule of the fine-tuning."""
    tuning = options.optim
    steps = options.steps
    # Without a value, lr and batch keep the run's.
    changes = {}
    if tuning.lr is not None:
        changes["lr"] = tuning.lr
    if tuning.batch is not None:
        changes["batch"] = tuning.batch
    if steps:
        changes["steps"] = steps
        changes["eval_every"] = tuning.eval_every or steps
        # Default of warmup: a tenth of the steps, rounded down to an even number.
        changes["warmup"] = 2 * (steps // 20) if tuning.warmup is None else tuning.warmup
    return run_optim.replace(**changes)


def _block(run_block: Target, new_block: Target, overrides: list[str]) -> Target:
    """Return the run's block with the options that the command line overrides.

    ``new_block`` itself is returned only if it is of another class or chosen by ``block=``: its other options are
    defaults that the yaml of attn brought.

    Raises:
        ValueError: an option of the run's block is removed (``~block.norm``).
    """
    is_chosen = any(override.startswith("block=") for override in overrides)
    if run_block.path != new_block.path or is_chosen:
        return new_block
    keys = set()
    for override in overrides:
        name, _, _ = override.partition("=")
        if name.startswith("block."):
            keys.add(name.removeprefix("block."))
    # ``mega_chunk`` differs from ``mega`` in its chunk only, so the chunk is taken over without an override too.
    if new_block.get("chunk"):
        keys.add("chunk")
    for key in keys:
        if key not in new_block.options:
            raise ValueError(f"~block.{key}: the block of the run cannot lose an option; write block.{key}=<value>")
    return run_block.replace(**{key: new_block.options[key] for key in keys})


def swap(run: RunDir, source: Experiment, target: Experiment) -> tuple[Classifier, Classifier]:
    """Load the run's best model, and put its weights into a model with the other mechanism.

    Args:
        run: finished run.
        source, target: the result of ``experiments``.

    Returns:
        The run's model, ``exact`` whatever its mechanism, and the swapped model. Weights that only the new mechanism
        has are drawn from the run's seed. Both are in evaluation mode on the CPU.

    Raises:
        ValueError: the new model needs further weights outside the mechanism, lacks some of the run's weights or has
            other shapes, or only one of the mechanisms has a shared projection for queries and keys.
    """
    exact = load_best_model(run, source)
    torch.manual_seed(run.result.seed)
    swapped = target.classifier()
    _check_shared_qk(exact, swapped, source, target)
    new_weights = swapped.state_dict()
    weights = _weights_to_keep(exact, new_weights)

    # Only the mechanism may have weights that the run does not have.
    prefixes = tuple(f"{path}." for path in mechanisms(swapped))
    old_keys = weights.keys()
    missing = [key for key in new_weights if key not in old_keys and not key.startswith(prefixes)]
    left_over = [key for key in old_keys if key not in new_weights]
    common = old_keys & new_weights.keys()
    reshaped = [key for key in common if weights[key].shape != new_weights[key].shape]
    problems = {
        f"{target.label} needs": missing,
        f"{target.label} has no place for": left_over,
        "other shapes": reshaped,
    }
    reasons = [f"{problem} {_shorten(keys)}" for problem, keys in problems.items() if keys]
    if reasons:
        raise ValueError(
            f"the weights of {run.path} ({source.label}) do not fit attn={target.label}: {'; '.join(reasons)}"
        )
    # The mechanism's additional weights stay as they were drawn.
    swapped.load_state_dict(weights, strict=False)
    return exact, swapped.eval()


def _weights_to_keep(exact: Classifier, new_weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the run's weights without the buffers of its mechanism, such as random numbers, that do not fit."""
    parameters = dict(exact.named_parameters(remove_duplicate=False))
    prefixes = tuple(f"{path}." for path in mechanisms(exact))
    weights = {}
    for key, value in exact.state_dict().items():
        new_value = new_weights.get(key)
        fits = new_value is not None and new_value.shape == value.shape
        if fits or key in parameters or not key.startswith(prefixes):
            weights[key] = value
    return weights


def _check_shared_qk(exact: Classifier, swapped: Classifier, source: Experiment, target: Experiment) -> None:
    """Raise ValueError if only one of the models has a shared projection for queries and keys."""
    # The set is empty for a model without mechanisms, which has no such projection.
    old_kinds = {type(mechanism).shared_qk for mechanism in mechanisms(exact).values()}
    new_kinds = {type(mechanism).shared_qk for mechanism in mechanisms(swapped).values()}
    if not old_kinds or not new_kinds or old_kinds == new_kinds:
        return
    if True in old_kinds:
        shared = source.label
        separate = target.label
    else:
        shared = target.label
        separate = source.label
    raise ValueError(
        f"{shared} has one projection for queries and keys and {separate} has two: their weights do not fit"
    )


def _shorten(keys: list[str]) -> str:
    keys = sorted(keys)
    text = ", ".join(keys[:3])
    if len(keys) > 3:
        text += f" and {len(keys) - 3} more"
    return text
