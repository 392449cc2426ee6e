"""One phase of a run: a module trained, or resumed, to the last step of its schedule."""

from dataclasses import dataclass

import lightning as L

from ..console import log
from ..data.datamodule import TaskData
from ..runs import checkpoint, record
from . import distributed
from .callbacks import Checkpoints, Diverged, Divergence, Report, Stopwatch
from .lit_module import LitModule
from .plan import Plan, SeedPlan
from .trainer import trainer


@dataclass(frozen=True, kw_only=True)
class Phase:
    """The end of a phase.

    Args:
        steps: that were made, or the first one whose loss was not finite.
        status: done | diverged.
        best_score, best_step: of the evaluations on dev; None if it diverged.
        train_loss: mean training loss since the evaluation before the last one; None if it diverged.
        step_ms: median.
        trainer: that trained it; None if the phase did not begin.
    """

    steps: int
    status: record.Status
    best_score: float | None
    best_step: int | None
    train_loss: float | None
    step_ms: float | None
    trainer: L.Trainer | None


NOT_BEGUN = Phase(
    steps=0, status="diverged", best_score=None, best_step=None, train_loss=None, step_ms=None, trainer=None
)


def run_phase(plan: Plan, run: SeedPlan, module: LitModule, data: TaskData) -> Phase:
    """Train a module in the folder of ``run`` by ``plan.experiment.optim``, from its last checkpoint if there is one.

    Raises:
        ValueError: a checkpoint cannot be used.
        KeyboardInterrupt: with the step that the same command resumes from.
    """
    first_step = distributed.on_rank_zero(lambda: checkpoint.first_step(run.folder, module.model, run.fingerprints))
    stopwatch, checkpoints = Stopwatch(), Checkpoints(run.folder, run.fingerprint)
    fitter = trainer(
        plan,
        logger=loggers(plan, run, first_step),
        callbacks=callbacks(plan, run, stopwatch, checkpoints),
        **schedule(plan),
    )
    steps, status = train(fitter, module, data, run, first_step)
    done = status == "done"
    return Phase(
        steps=steps,
        status=status,
        best_score=checkpoints.best_score if done else None,
        best_step=checkpoints.best_step if done else None,
        train_loss=checkpoints.train_loss if done else None,
        step_ms=stopwatch.median,
        trainer=fitter,
    )


def schedule(plan: Plan) -> dict:
    """Options of L.Trainer: optimiser steps, the micro-batches of each, and the evaluations between them."""
    o = plan.experiment.optim
    micro_batches = o.batch // (o.micro_batch or o.batch)
    return {
        "max_steps": o.steps,
        "max_epochs": -1,
        "accumulate_grad_batches": micro_batches,
        "gradient_clip_val": o.clip_norm,
        "val_check_interval": o.eval_every * micro_batches,
        "check_val_every_n_epoch": None,
        "num_sanity_val_steps": 0,
    }


def loggers(plan: Plan, run: SeedPlan, first_step: int) -> list:
    """The configured loggers, which go on after ``first_step``."""
    about = {"folder": run.folder, "first_step": first_step, "experiment": plan.experiment}
    about |= {"seed": run.seed, "fingerprint": run.fingerprint}
    return [logger(**about) for logger in plan.experiment.logger.values()]


def callbacks(plan: Plan, run: SeedPlan, stopwatch: Stopwatch, checkpoints: Checkpoints) -> list[L.Callback]:
    """In an order in which saving is not part of a step; the first process alone reports."""
    made = [Divergence(), checkpoints, stopwatch]
    if distributed.rank() == 0:
        made.append(Report(run.title, plan.more_seeds(run.seed), stopwatch, checkpoints))
    return made


def train(
    fitter: L.Trainer, module: LitModule, data: TaskData, run: SeedPlan, first_step: int
) -> tuple[int, record.Status]:
    """Train to the end, or to the first step whose loss is not finite: (that step, done | diverged)."""
    last = run.folder / checkpoint.LAST if first_step else None
    try:
        fitter.fit(module, data, ckpt_path=last, weights_only=True)
    except Diverged as stop:
        log(f"{run.title}: the loss was not finite at step {stop.step}")
        return stop.step, "diverged"
    except SystemExit:  # what Lightning makes of Ctrl-C and SIGTERM
        saved = (checkpoint.state(run.folder) or {"global_step": 0})["global_step"]
        stopped = f"stopped at step {fitter.global_step}; the same command resumes from step {saved}"
        raise KeyboardInterrupt(stopped) from None
    return fitter.max_steps, "done"
