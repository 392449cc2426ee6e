"""Callbacks of every evaluation: divergence check, one row of metrics, checkpoints, progress."""

import contextlib
import io
import statistics
import sys
import time
from pathlib import Path

import lightning as L
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..console import log
from ..disk import checksums
from ..runs import checkpoint

CHECK_EVERY = 50  # optimiser steps between looks at the loss; each look waits for the device
LINE_EVERY = 5.0  # seconds between progress lines where output is no terminal


class Diverged(Exception):
    def __init__(self, step: int):
        super().__init__(step)
        self.step = step


class Divergence(L.Callback):
    """Ends a run whose loss was not finite, with the first such step."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        if trainer.global_step % CHECK_EVERY == 0:
            self._check(module)

    def on_validation_start(self, trainer, module) -> None:
        self._check(module)

    def _check(self, module) -> None:
        if (step := module.first_bad_step()) is not None:
            raise Diverged(step)


class Stopwatch(L.Callback):
    """Milliseconds per optimiser step between evaluations, evaluations apart."""

    def __init__(self):
        self.step_ms: list[float] = []

    def on_train_start(self, trainer, module) -> None:
        self._mark(trainer)

    def on_validation_end(self, trainer, module) -> None:
        self._mark(trainer)

    def on_validation_start(self, trainer, module) -> None:
        if steps := trainer.global_step - self._step:
            self.step_ms.append(1000 * (time.perf_counter() - self._time) / steps)

    def _mark(self, trainer) -> None:
        self._time, self._step = time.perf_counter(), trainer.global_step

    @property
    def median(self) -> float | None:
        return round(statistics.median(self.step_ms), 3) if self.step_ms else None


class Checkpoints(L.Callback):
    """last.ckpt (the whole state) at every evaluation, best.ckpt (weights) if the dev score is strictly higher.

    best.ckpt is written first: a kill between the two repeats the steps since the older last.ckpt and writes it again.

    Args:
        folder: of the run.
        fingerprint: of the run, by which its last.ckpt is told from that of another one.
    """

    def __init__(self, folder: Path, fingerprint: str):
        self.folder, self.fingerprint = folder, fingerprint
        self.best_score, self.best_step, self.train_loss = None, None, None

    def on_validation_end(self, trainer, module) -> None:
        if self.best_score is None or module.score > self.best_score:
            self.best_score, self.best_step = module.score, trainer.global_step
            if trainer.is_global_zero:
                weights = io.BytesIO()  # torch's own file raises no OSError on a full disk
                torch.save(module.model.state_dict(), weights)
                with checksums.replaced(self.folder / checkpoint.BEST) as part:
                    part.write_bytes(weights.getbuffer())
        self.train_loss = module.mean_loss()
        row = {"train_loss": self.train_loss, "val": module.score, "lr": module.rate}
        for logger in trainer.loggers:
            logger.log_metrics(row, trainer.global_step)
        last = self.folder / checkpoint.LAST  # every process takes part, the first one writes
        with checksums.replaced(last) if trainer.is_global_zero else contextlib.nullcontext(last) as part:
            trainer.save_checkpoint(part)
        trainer.strategy.barrier()  # a signal that comes while the first one writes finds all at the same step

    def state_dict(self) -> dict:
        best = {"best_score": self.best_score, "best_step": self.best_step}
        return best | {"train_loss": self.train_loss, checkpoint.OWNER: self.fingerprint}

    @property
    def state_key(self) -> str:
        return checkpoint.CALLBACK

    def load_state_dict(self, state: dict) -> None:
        self.best_score, self.best_step = state["best_score"], state["best_step"]
        self.train_loss = state.get("train_loss")


class Report(L.Callback):
    """A bar with the time left in a terminal, plain lines elsewhere."""

    def __init__(self, title: str, more_seeds: int, stopwatch: Stopwatch, checkpoints: Checkpoints):
        self.title, self.more_seeds, self.stopwatch, self.checkpoints = title, more_seeds, stopwatch, checkpoints
        self.console = Console(file=sys.stderr)
        self.bar = None
        self._last_line = 0.0

    def on_train_start(self, trainer, module) -> None:
        self._start, self._first_step = time.monotonic(), trainer.global_step
        if self.console.is_terminal:
            columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
            self.bar = Progress(*columns, TextColumn("{task.fields[text]}"), console=self.console, transient=True)
            self.bar.start()
            self.line = self.bar.add_task(self.title, total=trainer.max_steps, completed=trainer.global_step, text="")

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        if self.bar:
            self.bar.update(self.line, completed=trainer.global_step)

    def on_validation_end(self, trainer, module) -> None:
        best = self.checkpoints
        score = f"dev {module.score:.2f}, best {best.best_score:.2f} at {best.best_step}"
        if self.bar:
            self.bar.update(self.line, text=f"{score}; {self._left(trainer)}")
        elif time.monotonic() - self._last_line > LINE_EVERY or trainer.global_step == trainer.max_steps:
            self._last_line = time.monotonic()
            log(
                f"{self.title}  step {trainer.global_step}/{trainer.max_steps}  {score}  "
                f"{self.stopwatch.step_ms[-1]:.1f} ms/step  {self._left(trainer)}"
            )

    def _left(self, trainer) -> str:
        """Time for the rest of this seed, evaluations included, and for the seeds after it."""
        per_step = (time.monotonic() - self._start) / (trainer.global_step - self._first_step)
        seed = per_step * (trainer.max_steps - trainer.global_step)
        if not self.more_seeds:
            return f"{clock(seed)} left"
        return f"{clock(seed)} left, {clock(seed + self.more_seeds * per_step * trainer.max_steps)} with all seeds"

    def teardown(self, trainer, module, stage: str) -> None:
        if self.bar:
            self.bar.stop()
            self.bar = None


def clock(seconds: float) -> str:
    """Write a time as 4:05, 13:04:05 or, from two days on, as 3 days."""
    if seconds >= 2 * 86400:
        return f"{seconds / 86400:,.0f} days"
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}" if minutes >= 60 else f"{minutes}:{seconds:02d}"
