"""Callbacks of the training loop: divergence, time per step, checkpoints and progress."""

import contextlib
import math
import statistics
import time
from pathlib import Path

import lightning as L
from rich.progress import Progress

from ..console import clock, log
from ..runs.run_dir import RunDir

# Optimiser steps between two checks of the loss; each check waits for the device.
CHECK_EVERY = 50


class Diverged(Exception):
    """A loss or a weight was not finite.

    Args:
        step: step of the first loss that was not finite, or of the evaluation that found the weight.
    """

    def __init__(self, step: int):
        super().__init__(step)
        self.step = step


class Divergence(L.Callback):
    """Ends a run whose loss or weights are not finite.

    It reports the step of the first such loss or, for weights, of the evaluation that found them.

    The loss is checked every CHECK_EVERY steps and before evaluations, the weights at evaluations.
    """

    def __init__(self):
        self._checked_step = 0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        # Lightning calls this after every micro-batch; a step may have several.
        step = trainer.global_step
        if step % CHECK_EVERY == 0 and step != self._checked_step:
            self._checked_step = step
            self._check_loss(module)

    def on_validation_start(self, trainer, module) -> None:
        self._check_loss(module)
        # Stop before a checkpoint is written with weights that are not finite.
        if not all(value.isfinite().all() for value in module.model.parameters()):
            raise Diverged(trainer.global_step)

    def on_validation_end(self, trainer, module) -> None:
        # The score of pretraining is a loss, which may overflow.
        if not math.isfinite(module.score):
            raise Diverged(trainer.global_step)

    def _check_loss(self, module) -> None:
        step = module.first_bad_step()
        if step is not None:
            raise Diverged(step)


class Stopwatch(L.Callback):
    """Measures milliseconds per optimiser step between evaluations, without the evaluations."""

    def __init__(self) -> None:
        self.step_ms: list[float] = []

    def on_train_start(self, trainer, module) -> None:
        self._restart(trainer)

    def on_validation_end(self, trainer, module) -> None:
        self._restart(trainer)

    def _restart(self, trainer) -> None:
        self._time = time.perf_counter()
        self._step = trainer.global_step

    def on_validation_start(self, trainer, module) -> None:
        steps = trainer.global_step - self._step
        if steps:
            seconds = time.perf_counter() - self._time
            self.step_ms.append(1000 * seconds / steps)

    @property
    def median(self) -> float | None:
        return round(statistics.median(self.step_ms), 3) if self.step_ms else None


class Checkpoints(L.Callback):
    """Saves at every evaluation: a line of metrics.csv, the best weights if the score is higher, and the state.

    Its own state in the checkpoint has the best evaluation so far, the sha256 of its weights, the last training loss,
    and what ``RunDir.state`` adds.

    Args:
        run_dir: run directory of the phase.
    """

    def __init__(self, run_dir: RunDir):
        self.run_dir = run_dir
        self.best_score: float | None = None
        self.best_step: int | None = None
        self.train_loss: float | None = None

    def on_validation_end(self, trainer, module) -> None:
        step = trainer.global_step
        loss = module.pop_mean_loss()
        is_best = self.best_score is None or module.score > self.best_score
        if is_best:
            self.best_score = module.score
            self.best_step = step
        self.train_loss = loss
        values = {"train_loss": loss, "val": module.score, "lr": module.rate}
        for logger in trainer.loggers:
            logger.log_metrics(values, step)

        # The best weights are written before last.ckpt, which has their digest, and become best.ckpt after it.
        saving: contextlib.AbstractContextManager[Path] = contextlib.nullcontext(self.run_dir.last)
        if trainer.is_global_zero:
            self.run_dir.save_metrics({"step": step, **values})
            if is_best:
                self.run_dir.save_best(module.model.state_dict())
            saving = self.run_dir.save_last()
        with saving as path:
            # Every rank takes part; rank 0 writes.
            trainer.save_checkpoint(path)
        if trainer.is_global_zero:
            self.run_dir.commit_best()
        # Wait for rank 0, so that a signal that arrives while it writes finds all ranks at the same step.
        trainer.strategy.barrier()

    def state_dict(self) -> dict:
        progress = {
            "best_score": self.best_score,
            "best_step": self.best_step,
            "digest": self.run_dir.digest,
            "train_loss": self.train_loss,
        }
        return progress | self.run_dir.state()

    def load_state_dict(self, state: dict) -> None:
        self.best_score = state["best_score"]
        self.best_step = state["best_step"]
        self.train_loss = state["train_loss"]


class Report(L.Callback):
    """Reports the progress of a seed on a live line or, without a terminal, by a log message at every evaluation.

    Args:
        title: title of the run.
        more_seeds: number of seeds that follow this one.
        checkpoints: callback with the best score.
        progress: live line.
    """

    def __init__(self, title: str, more_seeds: int, checkpoints: Checkpoints, progress: Progress):
        self.title = title
        self.more_seeds = more_seeds
        self.checkpoints = checkpoints
        self.progress = progress

    def on_train_start(self, trainer, module) -> None:
        self._start = time.monotonic()
        self._first_step = trainer.global_step
        self.progress.add_task(self.title, total=trainer.max_steps, completed=trainer.global_step, text="")

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        if self.progress.disable or trainer.global_step == self._first_step:
            return
        best_score = self.checkpoints.best_score
        text = self._pace(trainer)
        if best_score is not None:
            text = f"best {best_score:.2f}, {text}"
        self.progress.update(self.progress.task_ids[0], completed=trainer.global_step, text=text)

    def on_validation_end(self, trainer, module) -> None:
        if self.progress.disable:
            step = f"step {trainer.global_step:,}/{trainer.max_steps:,}"
            best = f"best {self.checkpoints.best_score:.2f} at step {self.checkpoints.best_step:,}"
            log(f"{self.title}: {step}, validation {module.score:.2f}, {best}, {self._pace(trainer)}")

    def _pace(self, trainer) -> str:
        """Steps per second, and the time left for this phase of all seeds; both include evaluations."""
        seconds = time.monotonic() - self._start
        rate = (trainer.global_step - self._first_step) / seconds
        steps_left = trainer.max_steps * (1 + self.more_seeds) - trainer.global_step
        return f"{rate:.2f} steps/s, {clock(steps_left / rate)} left"
