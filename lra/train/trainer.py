"""The loop: Lightning's Trainer, what it does at every evaluation, and one phase trained or resumed by it."""

import contextlib
import logging
import statistics
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import lightning as L
from lightning.pytorch.strategies import DDPStrategy
from rich.progress import Progress
from torch import nn

from ..console import clock, log
from ..data.datamodule import TaskData
from ..live import live_line
from ..runs import checkpoint, record, typed_json
from ..runs.folder import RunFolder
from . import distributed
from .compiling import Compile
from .lit import LitClassifier, LitModule
from .machine import Trim
from .plan import Plan

PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
CHECK_EVERY = 50  # optimiser steps between looks at the loss; each look waits for the device
_INTENDED = (  # warnings about things that are meant to be so
    "does not have many workers|Starting from v1.9|length of `list`|LeafSpec|broadcast_buffers|no `val_dataloader`|"
    r"lr_scheduler.step\(\).*before.*optimizer.step\(\)"
)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """The end of a phase.

    Args:
        steps: number of steps that were made, or the first one whose loss or weights were not finite.
        status: done | diverged.
        best_score, best_step: best evaluation on dev; None if the phase diverged.
        digest: sha256 of its weights as this process, or the one before it, wrote them; None in other processes.
        train_loss: mean training loss since the evaluation before the last one; None if the phase diverged.
        step_ms: median time of a step.
        trainer: trainer of the phase; None if the phase did not begin.
    """

    steps: int = 0
    status: record.Status = "diverged"
    best_score: float | None = None
    best_step: int | None = None
    digest: str | None = None
    train_loss: float | None = None
    step_ms: float | None = None
    trainer: L.Trainer | None = None


def run_phase(plan: Plan, run: RunFolder, module: LitModule, data: TaskData) -> Phase:
    """Train a module in a folder by ``plan.experiment.optim``, from its last checkpoint if there is one.

    Raises:
        ValueError: a checkpoint cannot be used.
        KeyboardInterrupt: with the step that the same command resumes from.
    """
    first_step = distributed.on_rank_zero(lambda: run.resume(module.model))
    about = {"folder": run.path, "first_step": first_step, "experiment": plan.experiment}
    about |= {"seed": run.seed, "fingerprint": run.fingerprint}
    stopwatch, checkpoints = Stopwatch(), Checkpoints(run)
    line = live_line()
    # In an order in which saving is not part of a step.
    callbacks = [Divergence(), checkpoints, stopwatch, Report(run.title, plan.more_seeds(run.seed), checkpoints, line)]
    if compiled := plan.experiment.trainer.compile:
        callbacks.insert(0, Compile(run.title, compiled))
    o = plan.experiment.optim
    micro_batches = o.batch // (o.micro_batch or o.batch)
    fitter = trainer(
        plan,
        callbacks,
        logger=[logger(**about) for logger in plan.experiment.logger.values()],
        max_steps=o.steps,
        max_epochs=-1,
        accumulate_grad_batches=micro_batches,
        gradient_clip_val=o.clip_norm,
        val_check_interval=o.eval_every * micro_batches,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
    )
    last = run.path / checkpoint.LAST if first_step else None
    try:
        with line:
            fitter.fit(module, data, ckpt_path=last, weights_only=True)
    except Diverged as stop:
        (step,) = stop.args
        log(f"{run.title}: the loss or a weight was not finite at step {step:,}")
        return Phase(steps=step, step_ms=stopwatch.median, trainer=fitter)
    except SystemExit:  # what Lightning makes of Ctrl-C and SIGTERM
        saved = (checkpoint.state(run.path / checkpoint.LAST) or {"global_step": 0})["global_step"]
        stopped = f"stopped at step {fitter.global_step}; the same command resumes from step {saved}"
        raise KeyboardInterrupt(stopped) from None
    return Phase(steps=o.steps, status="done", step_ms=stopwatch.median, trainer=fitter, **checkpoints.best)


def trainer(plan: Plan, callbacks: Sequence[L.Callback] = (), **options) -> L.Trainer:
    """Make a Trainer on the plan's processes that neither logs nor saves by itself.

    Args:
        plan: plan of the configuration.
        callbacks: callbacks.
        options: further options of L.Trainer.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=f".*({_INTENDED}).*")
    several = plan.processes.count > 1
    return L.Trainer(
        callbacks=[*([Trim()] if plan.device == "cpu" else []), *callbacks],
        accelerator=plan.device,
        devices=plan.processes.local,
        num_nodes=plan.processes.count // plan.processes.local,
        # Buffers are the same everywhere, and in evaluation the processes may have different numbers of batches.
        strategy=DDPStrategy(broadcast_buffers=False) if several else "auto",
        plugins=[plan.processes.environment],
        use_distributed_sampler=False,
        precision=PRECISIONS[plan.experiment.trainer.precision],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def evaluate(plan: Plan, model: nn.Module, data: TaskData) -> tuple[float, float]:
    """Score a model on every example of dev, and of test."""
    module, tester = LitClassifier(plan.experiment, model, seed=0), trainer(plan, logger=False)
    tester.validate(module, data, verbose=False)
    val = module.score
    tester.test(module, data, verbose=False)
    return val, module.score


class Diverged(Exception):
    """A loss or a weight was not finite at the step that is the argument."""


class Divergence(L.Callback):
    """Ends a run whose loss was not finite, with the first such step, or whose weights are not at an evaluation."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        if trainer.global_step % CHECK_EVERY == 0:
            self._check(module)

    def on_validation_start(self, trainer, module) -> None:
        self._check(module)
        if not all(value.isfinite().all() for value in module.model.parameters()):
            raise Diverged(trainer.global_step)  # no checkpoint holds such weights

    def _check(self, module) -> None:
        if (step := module.first_bad_step()) is not None:
            raise Diverged(step)


class Stopwatch(L.Callback):
    """Milliseconds per optimiser step between evaluations, evaluations apart."""

    def __init__(self):
        self.step_ms: list[float] = []

    def on_train_start(self, trainer, module) -> None:
        self._time, self._step = time.perf_counter(), trainer.global_step

    on_validation_end = on_train_start

    def on_validation_start(self, trainer, module) -> None:
        if steps := trainer.global_step - self._step:
            self.step_ms.append(1000 * (time.perf_counter() - self._time) / steps)

    @property
    def median(self) -> float | None:
        return round(statistics.median(self.step_ms), 3) if self.step_ms else None


class Checkpoints(L.Callback):
    """At every evaluation a row of metrics.csv and the checkpoints, the weights only if the dev score is higher."""

    def __init__(self, run: RunFolder):
        self.run = run
        self.best = dict.fromkeys(["best_score", "best_step", "digest", "train_loss"])  # as in ``Phase``

    def on_validation_end(self, trainer, module) -> None:
        score, loss = self.best["best_score"], module.mean_loss()
        better = score is None or module.score > score
        if better:
            self.best |= {"best_score": module.score, "best_step": trainer.global_step, "digest": None}
        self.best["train_loss"] = loss
        row = {"train_loss": loss, "val": module.score, "lr": module.rate}
        for logger in trainer.loggers:
            logger.log_metrics(row, trainer.global_step)
        saving = contextlib.nullcontext(self.run.path / checkpoint.LAST)
        if trainer.is_global_zero:
            self.run.append_metrics({"step": trainer.global_step, **row})
            if better:
                self.best["digest"] = self.run.save_best(module.model.state_dict())
            saving = self.run.save_last()
        with saving as path:  # every process takes part, the first one writes
            trainer.save_checkpoint(path)
        trainer.strategy.barrier()  # a signal that comes while the first one writes finds all at the same step

    def state_dict(self) -> dict:
        return self.best | {"form": typed_json.FORM, "fingerprint": self.run.fingerprint, "curve": self.run.curve}

    def load_state_dict(self, state: dict) -> None:
        self.best = {name: state[name] for name in self.best}


class Report(L.Callback):
    """Says how far a seed is: on a live line, or without one in a line at every evaluation.

    Args:
        title: title of the run.
        more_seeds: number of seeds that come after this one.
        checkpoints: callback that has the best score.
        line: live line.
    """

    def __init__(self, title: str, more_seeds: int, checkpoints: Checkpoints, line: Progress):
        self.title, self.more_seeds, self.checkpoints, self.line = title, more_seeds, checkpoints, line

    def on_train_start(self, trainer, module) -> None:
        self._start, self._first_step = time.monotonic(), trainer.global_step
        self.line.add_task(self.title, total=trainer.max_steps, completed=trainer.global_step, text="")

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        if not self.line.disable and trainer.global_step > self._first_step:
            best = self.checkpoints.best["best_score"]
            text = ("" if best is None else f"best {best:.2f}, ") + self._pace(trainer)
            self.line.update(self.line.task_ids[0], completed=trainer.global_step, text=text)

    def on_validation_end(self, trainer, module) -> None:
        if self.line.disable:
            best = "best {best_score:.2f} at step {best_step:,}".format_map(self.checkpoints.best)
            step = f"step {trainer.global_step:,}/{trainer.max_steps:,}"
            log(f"{self.title}: {step}, dev {module.score:.2f}, {best}, {self._pace(trainer)}")

    def _pace(self, trainer) -> str:
        """Steps a second and the time left over all seeds, evaluations included in both."""
        rate = (trainer.global_step - self._first_step) / (time.monotonic() - self._start)
        steps = trainer.max_steps * (1 + self.more_seeds) - trainer.global_step
        return f"{rate:.2f} steps/s, {clock(steps / rate)} left"
