"""Callbacks of the training loop: torch.compile, divergence, time per step, checkpoints and progress."""

import contextlib
import itertools
import statistics
import time
from collections.abc import Iterable
from pathlib import Path

import lightning as L
import torch
from rich.progress import Progress
from torch import nn

from ..console import clock, log
from ..data.datamodule import Batch, TaskData
from ..runs.run_dir import RunDir

# Optimiser steps between two checks of the loss; each check waits for the device.
CHECK_EVERY = 50
# Number of different widths of batches up to which a CUDA graph for each is worth its memory.
MAX_NUM_WIDTHS = 8
GRAPHS = "reduce-overhead"
# Trials of one step: the first compiles, the second records a CUDA graph, the third replays it.
TRIALS = 3
# Training batches that are searched for a second width.
SEARCHED = 20
NAMES = {GRAPHS: "CUDA graphs", None: "torch.compile"}


class Diverged(Exception):
    """A loss or a weight was not finite.

    Args:
        step: the step.
    """

    def __init__(self, step: int):
        super().__init__(step)
        self.step = step


class Divergence(L.Callback):
    """Ends a run whose loss or weights are not finite, and reports the first such step, or the evaluation for weights.

    The loss is checked every CHECK_EVERY steps and before evaluations, the weights at evaluations.
    """

    def __init__(self):
        self._checked_step = 0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        # It is called after every micro-batch, of which a step may have several.
        step = trainer.global_step
        if step % CHECK_EVERY == 0 and step != self._checked_step:
            self._checked_step = step
            self._check_loss(module)

    def on_validation_start(self, trainer, module) -> None:
        self._check_loss(module)
        # No checkpoint holds such weights.
        if not all(value.isfinite().all() for value in module.model.parameters()):
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
        self.digest: str | None = None
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

        # Order of the files: best.ckpt precedes last.ckpt, which holds its digest (RunDir.save_best).
        saving: contextlib.AbstractContextManager[Path] = contextlib.nullcontext(self.run_dir.last)
        if trainer.is_global_zero:
            self.run_dir.save_metrics({"step": step, **values})
            if is_best:
                self.digest = self.run_dir.save_best(module.model.state_dict())
            saving = self.run_dir.save_last()
        with saving as path:
            # Every rank takes part; rank 0 writes.
            trainer.save_checkpoint(path)
        # A signal that arrives while rank 0 writes finds all ranks at the same step.
        trainer.strategy.barrier()

    def state_dict(self) -> dict:
        best = {"best_score": self.best_score, "best_step": self.best_step, "digest": self.digest}
        return best | {"train_loss": self.train_loss} | self.run_dir.state()

    def load_state_dict(self, state: dict) -> None:
        self.best_score = state["best_score"]
        self.best_step = state["best_step"]
        self.digest = state["digest"]
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


class Compile(L.Callback):
    """Compiles the model of a run before its first step, or logs why it runs without compilation.

    The trials change no result: the RNG is reseeded before every step, and buffers are restored.

    Args:
        title: title of the run.
        option: option ``trainer.compile``.
    """

    def __init__(self, title: str, option: bool | str):
        self.title = title
        self.option = option

    def on_train_start(self, trainer, module) -> None:
        data = trainer.datamodule
        device = module.device.type
        is_packed = any(getattr(part, "packed", False) for part in module.model.modules())
        if device == "cpu" and is_packed:
            log(f"{self.title}: continues without torch.compile: with data.pad=none each batch has its own shape")
            return
        training_batches = trial_batches(data.train_dataloader())
        # None if this rank has no validation batch.
        evaluation_batch = next(iter(data.val_dataloader()), None)
        for mode in modes(self.option, data, device):
            compile_forward(module.model, mode)
            try:
                with trainer.precision_plugin.forward_context():
                    _try(module, training_batches, evaluation_batch)
                return
            # The compiler, a kernel or an allocator may raise any exception.
            except Exception as error:
                del module.model.forward
                message = " ".join(f"{type(error).__name__} {error}".split())
                log(f"{self.title}: continues without {NAMES[mode]}: {message[:200]}")


def modes(option: bool | str, data: TaskData, device: str) -> list[str | None]:
    """List the modes of torch.compile in the order in which they are tried.

    Args:
        option: option ``trainer.compile``.
        data: data of the run, set up.
        device: cpu | cuda.

    Returns:
        ``reduce-overhead`` (CUDA graphs) comes first if the option names it or, for ``auto``, on a GPU if steps have
        few shapes and one micro-batch: a second replay would overwrite its gradients. None, the default, is last.
    """
    uses_graphs = option == GRAPHS
    if option == "auto":
        has_one_micro_batch = data.micro_batch == data.batch
        uses_graphs = device == "cuda" and has_one_micro_batch and data.count_widths() <= MAX_NUM_WIDTHS
    return [GRAPHS, None] if uses_graphs else [None]


def compile_forward(model: nn.Module, mode: str | None) -> None:
    """Compile the forward pass of a model; ``del model.forward`` undoes it.

    Evaluation has many shapes and is compiled without CUDA graphs.
    """
    evaluation_forward = torch.compile(model.forward)
    training_forward = torch.compile(model.forward, mode=mode) if mode else evaluation_forward

    def forward(*args):
        return training_forward(*args) if model.training else evaluation_forward(*args)

    model.forward = forward


def trial_batches(loader: Iterable[Batch]) -> list[Batch]:
    """Choose the training batches of a trial: the first one, and the first of another width among SEARCHED.

    The second width makes torch.compile generate kernels for any width, which can fail where the first width succeeds.
    """
    batches: list[Batch] = []
    widths = set()
    for batch in itertools.islice(loader, SEARCHED):
        width = batch.inputs.shape[2]
        if width not in widths:
            batches.append(batch)
            widths.add(width)
        if len(widths) > 1:
            break
    return batches


def _try(module, training_batches: list[Batch], evaluation_batch: Batch | None) -> None:
    """Run training steps and an evaluation without an optimiser, and restore the buffers of the model."""
    model = module.model
    buffers = [buffer.clone() for buffer in model.buffers()]
    try:
        first = training_batches[0]
        for batch in [first] * TRIALS + training_batches[1:]:
            module.batch_loss(batch).backward()
            model.zero_grad()
        if evaluation_batch is not None:
            model.eval()
            with torch.no_grad():
                module.on_validation_epoch_start()
                module.validation_step(evaluation_batch, 0)
    finally:
        model.train()
        model.zero_grad()
        for buffer, value in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(value)
