"""The training loop: one phase of a run (pretraining, or training), trained or resumed by Lightning's Trainer."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

from ..attention import controls
from ..console import log
from ..data.datamodule import TaskData
from ..data.progress import live_line
from ..ops.precision import ProductsInFloat32, emulates_bf16
from ..runs import record
from ..runs.checkpoint import serialise
from ..runs.run_dir import RunDir
from .callbacks import Checkpoints, Diverged, Divergence, Report, Stopwatch
from .compilation import Compile
from .device import TrimHeap
from .lit import LitClassifier, LitModule
from .plan import Plan

# Lightning's name of each ``trainer.precision``.
PRECISIONS: dict[str, Any] = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
# Warnings of Lightning and torch about settings that are intended.
_EXPECTED_WARNINGS = (
    "does not have many workers|Starting from v1.9|length of `list`|LeafSpec|broadcast_buffers|no `val_dataloader`|"
    r"lr_scheduler.step\(\).*before.*optimizer.step\(\)|find_unused_parameters=True was specified|"
    "TensorFloat32 tensor cores|Online softmax is disabled|code generation for complex operators"
)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """The result of a phase.

    Args:
        status: done | diverged.
        steps: number of training steps. If the phase diverged: the step of the first loss that was not finite, or of
            the evaluation that found a weight that was not finite.
        best_score: best validation score; None if the phase diverged.
        best_step: step of the best validation score; None if the phase diverged.
        train_loss: mean training loss of the steps between the last two evaluations; None if the phase diverged.
        step_ms: milliseconds per step, the median over the intervals between evaluations; None if no interval ended.
        trainer: trainer of the phase; None if pretraining diverged, so that training did not begin.
    """

    status: record.Status
    steps: int = 0
    best_score: float | None = None
    best_step: int | None = None
    train_loss: float | None = None
    step_ms: float | None = None
    trainer: L.Trainer | None = None


def run_phase(plan: Plan, run_dir: RunDir, module: LitModule, data: TaskData) -> Phase:
    """Train a module by ``plan.experiment.optim``, or resume it from ``last.ckpt``.

    Args:
        plan: experiment, device and processes, see ``Plan``. In pretraining, ``plan.experiment.optim`` holds the
            options of pretraining.
        run_dir: run directory of the phase.
        module: model with its loss and its optimiser.
        data: data of the task.

    Raises:
        ValueError: a checkpoint cannot be used.
        KeyboardInterrupt: training was interrupted; the message gives the step from which the same command resumes.
    """
    # 1. Check the last checkpoint and restore its evaluations; ``fit`` below loads the weights. first_step is the step
    # to resume from, 0 in a new run; loggers continue their curves there.
    experiment = plan.experiment
    optim = experiment.optim
    first_step = run_dir.resume(module.model)
    loggers = [
        make_logger(
            folder=run_dir.path,
            first_step=first_step,
            experiment=experiment,
            seed=run_dir.seed,
            fingerprint=run_dir.fingerprint,
        )
        for make_logger in experiment.logger.values()
    ]

    # 2. Callbacks, in the order in which they run. Compile and Checkpoints precede Stopwatch, so it starts when they
    # are done and their time does not count. Divergence precedes it too: before an evaluation it reads the loss, which
    # waits for the GPU, and only then Stopwatch stops.
    stopwatch = Stopwatch()
    checkpoints = Checkpoints(run_dir)
    progress = live_line()
    report = Report(run_dir.title, plan.count_later_seeds(run_dir.seed), checkpoints, progress)
    callbacks = [Divergence(), checkpoints, stopwatch, report]
    if experiment.trainer.compile:
        callbacks.insert(0, Compile(run_dir.title, experiment.trainer.compile))
    trainer = make_trainer(
        plan,
        callbacks,
        logger=loggers,
        max_steps=optim.steps,
        max_epochs=-1,
        accumulate_grad_batches=optim.micro_batches,
        gradient_clip_val=optim.clip_norm,
        # Lightning counts micro-batches here.
        val_check_interval=optim.eval_every * optim.micro_batches,
        # None: count across epochs. The stream of batches has no end.
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
    )
    # 3. Fit, from the last checkpoint if there is one.
    last_checkpoint = run_dir.last if first_step else None
    try:
        with progress, resumable(trainer, run_dir):
            # weights_only is the safe mode of torch.load: optimiser, schedule and callbacks are restored too.
            trainer.fit(module, data, ckpt_path=last_checkpoint, weights_only=True)
    except Diverged as error:
        log(f"{run_dir.title}: the loss or a weight was not finite at step {error.step:,}")
        return Phase(status="diverged", steps=error.step, step_ms=stopwatch.median, trainer=trainer)
    return Phase(
        status="done",
        steps=optim.steps,
        step_ms=stopwatch.median,
        trainer=trainer,
        best_score=checkpoints.best_score,
        best_step=checkpoints.best_step,
        train_loss=checkpoints.train_loss,
    )


@contextmanager
def resumable(trainer: L.Trainer, run_dir: RunDir) -> Iterator[None]:
    """Raise KeyboardInterrupt with the step and the remedy if Ctrl-C or SIGTERM ends the block."""
    try:
        with stoppable(trainer):
            yield
    except KeyboardInterrupt:
        remedy = f"the same command resumes from step {run_dir.saved_step()}"
        raise KeyboardInterrupt(f"stopped at step {trainer.global_step}; {remedy}") from None


@contextmanager
def stoppable(trainer: L.Trainer) -> Iterator[None]:
    """Raise KeyboardInterrupt if Ctrl-C or SIGTERM ends the block, which may call the trainer once."""
    try:
        yield
    # Lightning ends the process by SystemExit.
    except SystemExit:
        raise KeyboardInterrupt from None
    # Lightning does not look at a signal after the last batch of an evaluation.
    if trainer.received_sigterm:
        raise KeyboardInterrupt


class CheckpointFile(TorchCheckpointIO):
    """Writes a checkpoint to its path, and reads it from there.

    Lightning's class first writes it to the system's temporary directory, and takes a path such as ``http_runs/x``
    for a URL.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        Path(path).write_bytes(serialise(checkpoint))

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None) -> dict[str, Any]:
        return torch.load(path, map_location=map_location, weights_only=weights_only)


class EmulatedBf16(MixedPrecision):
    """Mixed precision with bfloat16 on a CPU whose products are computed by ``ProductsInFloat32``."""

    @contextmanager
    def forward_context(self) -> Iterator[None]:
        with super().forward_context(), ProductsInFloat32():
            yield

    def backward(self, *args, **kwargs) -> None:
        with ProductsInFloat32():
            super().backward(*args, **kwargs)


def make_trainer(plan: Plan, callbacks: Sequence[L.Callback] = (), **options) -> L.Trainer:
    """Make a Trainer for the processes of a plan, without Lightning's checkpoints, progress bar and model summary.

    Args:
        plan: experiment, device and processes, see ``Plan``.
        callbacks: callbacks in the order in which they run.
        options: further arguments of ``L.Trainer``, such as ``logger``.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    ignore_expected_warnings()
    processes = plan.processes
    heap_callbacks = [TrimHeap()] if plan.device == "cpu" else []
    strategy: Any = "auto"
    if processes.count > 1:
        # A control reads no queries and keys, so their scale and shift in MEGA have no gradient. A custom mechanism may
        # have parameters without a gradient too.
        path = plan.experiment.attn.path
        may_have_unused = path.startswith(controls.__name__) or not path.startswith("lra.")
        # Do not broadcast buffers: they are equal on all ranks, and a rank with more evaluation batches would wait
        # forever.
        strategy = DDPStrategy(broadcast_buffers=False, find_unused_parameters=may_have_unused)
    plugins: list[Any] = [processes.environment, CheckpointFile()]
    settings = plan.experiment.trainer
    precision = PRECISIONS[settings.precision]
    # Dynamo does not trace ProductsInFloat32.
    if emulates_bf16(plan.device, settings.precision) and not settings.compile:
        plugins.append(EmulatedBf16(precision, plan.device))
        # Lightning takes a plugin or a precision, not both.
        precision = None
    return L.Trainer(
        callbacks=[*heap_callbacks, *callbacks],
        accelerator=plan.device,
        devices=processes.local,
        num_nodes=processes.count // processes.local,
        strategy=strategy,
        plugins=plugins,
        use_distributed_sampler=False,
        precision=precision,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def evaluate(plan: Plan, model: nn.Module, data: TaskData) -> tuple[float, float]:
    """Return the scores of a model on the validation set and on the test set."""
    # The seed acts in training only.
    module = LitClassifier.of(plan.experiment, model, seed=0)
    trainer = make_trainer(plan, logger=False)
    with stoppable(trainer):
        trainer.validate(module, data, verbose=False)
    val_score = module.score
    with stoppable(trainer):
        trainer.test(module, data, verbose=False)
    return val_score, module.score


def ignore_expected_warnings() -> None:
    """Hide warnings of Lightning and torch about settings that are intended."""
    # (?s): some messages begin with an empty line.
    warnings.filterwarnings("ignore", message=f"(?s).*({_EXPECTED_WARNINGS}).*")
