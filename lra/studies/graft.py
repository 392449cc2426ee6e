"""The experiment and the weights of a finished run with another mechanism, and the options that choose it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import nn

from ..config.calls import Call
from ..config.experiment import Experiment
from ..config.options import Options
from ..config.section import Section
from ..config.sections import Above, Attn, BatchSize, Block, Loggers, Name, Optim, Root, Trainer, Trust
from ..options import Positive, Whole
from ..runs.restore import best, configuration
from ..runs.run_dir import RunDir
from .qkv import mechanisms


class Tuning(Section):
    lr: Above | None
    batch: BatchSize | None
    warmup: Whole | None
    eval_every: Positive | None


class Moved(Root):
    eval_batch: BatchSize | None


class TransferOptions(Options):
    """The options of conf/transfer.yaml."""

    conf: ClassVar[str] = "transfer"

    run: Annotated[Path, Field(description="a finished run: run=runs/<study>/<task>/<label>")]
    trust: Trust
    attn: Attn
    block: Block = None
    trainer: Trainer
    logger: Loggers = Field({})
    steps: Whole
    examples: Positive
    spectrum: Whole
    optim: Tuning
    study: Name | None
    runs: Path
    data: Moved

    @classmethod
    def check_unresolved(cls, tree: Mapping[str, Any]) -> None:
        if "task" in tree:
            raise ValueError("a transfer has the task of its run; leave out task=")


def experiments(run: RunDir, options: TransferOptions) -> tuple[Experiment, Experiment]:
    """Restore the experiment of a finished run, and derive the one with the mechanism and fine-tuning of a transfer.

    Raises:
        ValueError: the run has other attention weights than the mechanism, and no override chooses one.
    """
    source = configuration(run, options.data.root)
    source = source.replace(
        runs=options.runs,
        logger=options.logger,
        multirun=options.multirun,
        trainer=options.trainer,
        data=source.data.replace(eval_batch=options.data.eval_batch or source.optim.batch),
    )
    attn, overrides = options.attn, [override.lstrip("+~") for override in options.command_overrides]
    if attn.get("class_token", False) is None:  # it follows the pooling, which is the run's
        attn = attn.replace(class_token=source.model.pool in ("cls", "class"))
    own, new = source.attn.get("weights"), attn.get("weights")
    if None not in (own, new) and own != new and not any(line.startswith("attn.weights=") for line in overrides):
        raise ValueError(f"{run.path} has attn.weights={own} and attn={options.label} {new}; say attn.weights={own}")
    target = source.replace(
        attn=attn,
        label=options.label,
        study=options.study or run.record.study,
        block=_block(source.block, options.block, overrides) if options.block else source.block,
        optim=_optim(source.optim, options),
    )
    return source, target


def _optim(own: Optim, options: TransferOptions) -> Optim:
    """The run's optimiser with the rate, the batch and the schedule of the fine-tuning."""
    tuning, steps = options.optim, options.steps
    changes = {key: getattr(tuning, key) for key in ("lr", "batch") if getattr(tuning, key) is not None}
    if steps:
        warmup = 2 * (steps // 20) if tuning.warmup is None else tuning.warmup
        changes |= {"steps": steps, "eval_every": tuning.eval_every or steps, "warmup": warmup}
    return own.replace(**changes)


def _block(own: Call, asked: Call, overrides: list[str]) -> Call:
    """The run's block with the options of the overrides, since an attn brings the defaults of its block.

    A chunk is not a default but the meaning of ``mega_chunk``, so it is taken over. A block of another class replaces
    the run's.
    """
    if own.path != asked.path or any(line.startswith("block=") for line in overrides):
        return asked
    keys = {line.partition("=")[0].removeprefix("block.") for line in overrides if line.startswith("block.")}
    if asked.get("chunk"):
        keys.add("chunk")
    return own.replace(**{key: asked.options[key] for key in keys})


def graft(run: RunDir, source: Experiment, target: Experiment) -> tuple[nn.Module, nn.Module]:
    """Load the run's best model, and put its weights into the model of the other one of its ``experiments``.

    Returns:
        The exact and the grafted model; the mechanism's own weights are drawn from the run's seed.

    Raises:
        ValueError: weights other than those of the mechanism are missing, or some are left over.
    """
    exact = best(run, source)
    weights = exact.state_dict()
    torch.manual_seed(run.record.seed)
    grafted = target.classifier()
    shares = [{type(m).shares_qk for m in mechanisms(model).values()} for model in (exact, grafted)]
    if all(shares) and shares[0] != shares[1]:
        one, two = (r.label for r in ((source, target) if True in shares[0] else (target, source)))
        raise ValueError(f"{one} has one projection for queries and keys and {two} has two: their weights do not fit")
    own = tuple(f"{path}." for path in mechanisms(grafted))
    have, want = weights.keys(), grafted.state_dict()
    problems = {
        f"{target.label} needs": [key for key in want if key not in have and not key.startswith(own)],
        f"{target.label} has no place for": [key for key in have if key not in want],
        "other shapes": [key for key in have & want.keys() if weights[key].shape != want[key].shape],
    }
    if any(problems.values()):
        reasons = "; ".join(f"{problem} {_some(keys)}" for problem, keys in problems.items() if keys)
        raise ValueError(f"the weights of {run.path} ({source.label}) do not fit attn={target.label}: {reasons}")
    grafted.load_state_dict(weights, strict=False)
    return exact, grafted.eval()


def _some(keys: list[str]) -> str:
    keys = sorted(keys)
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
