"""One run, from its folder to its record."""

import lightning as L
import torch
from hydra.utils import instantiate
from torch import nn

from ..console import log
from ..data.datamodule import TaskData
from ..runs import checkpoint, record
from . import build, distributed, machine
from .callbacks import Checkpoints, Diverged, Divergence, Report, Stopwatch
from .heap import Trim
from .lit_module import LitClassifier
from .plan import Plan, Run
from .trainer import lit_classifier, trainer


def fit(plan: Plan, run: Run, model: nn.Module | None = None) -> record.RunRecord:
    """Train, or resume, one seed and score its best dev checkpoint on the test set once.

    Args:
        plan: of the configuration.
        run: the seed.
        model: to start from; None for a new classifier.

    Raises:
        ValueError: a checkpoint cannot be used.
        KeyboardInterrupt: with the step that the same command resumes from.
    """
    machine.prepare(plan.device, plan.config.trainer.threads)
    model = seeded(plan, run, model)
    data = build.task_data(plan.config, run.seed)
    first_step = distributed.on_rank_zero(lambda: checkpoint.first_step(run.folder, model, run.fingerprints))
    stopwatch, checkpoints = Stopwatch(), Checkpoints(run.folder, run.fingerprint)
    module = lit_classifier(plan.config, model, loss=plan.loss, seed=run.seed)
    fitter = trainer(
        plan,
        logger=loggers(plan, run, first_step),
        callbacks=callbacks(plan, run, stopwatch, checkpoints),
        **schedule(plan),
    )
    steps, status = train(fitter, module, data, run, first_step)
    done = status == "done"
    score = test(fitter, module, data, run) if done else None
    result = record.RunRecord(
        **origin(plan, run),
        params=sum(p.numel() for p in model.parameters()),
        val=checkpoints.best_score if done else None,
        test=score,
        constant_baseline=data.baseline("test", module.metric),
        n_val=len(data.splits["val"]),
        n_test=len(data.splits["test"]),
        best_step=checkpoints.best_step if done else None,
        steps=steps,
        step_ms=stopwatch.median,
        peak_bytes=machine.peak_bytes(plan.device),
        device=machine.device_name(plan.device, plan.processes.count),
        status=status,
    )
    for logger in fitter.loggers:
        logger.log_record(result)
    return result


def seeded(plan: Plan, run: Run, model: nn.Module | None) -> nn.Module:
    """The model in training mode, compiled if so configured; a new one has the weights of the seed."""
    torch.manual_seed(run.seed)
    model = build.classifier(plan.config) if model is None else model.train()
    if compiled := plan.config.trainer.compile:
        model.compile(mode=None if compiled is True else compiled)
    return model


def schedule(plan: Plan) -> dict:
    """Options of L.Trainer: optimiser steps, the micro-batches of each, and the evaluations between them."""
    o = plan.config.optim
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


def loggers(plan: Plan, run: Run, first_step: int) -> list:
    """The configured loggers, which go on after ``first_step``."""
    about = {"folder": run.folder, "first_step": first_step, "config": plan.config}
    about |= {"seed": run.seed, "fingerprint": run.fingerprint}
    return [factory(**about) for factory in instantiate(plan.config.logger).values()]


def callbacks(plan: Plan, run: Run, stopwatch: Stopwatch, checkpoints: Checkpoints) -> list[L.Callback]:
    """In an order in which saving is not part of a step; the first process alone reports."""
    made = [Divergence(), checkpoints, stopwatch]
    if plan.device == "cpu":
        made.append(Trim())
    if distributed.rank() == 0:
        made.append(Report(run.title, plan.more_seeds(run.seed), stopwatch, checkpoints))
    return made


def train(
    fitter: L.Trainer, module: LitClassifier, data: TaskData, run: Run, first_step: int
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


def test(fitter: L.Trainer, module: LitClassifier, data: TaskData, run: Run) -> float:
    """Test score of the weights of the best dev score."""
    checkpoint.load_weights(module.model, run.folder / checkpoint.BEST)
    fitter.test(module, data, verbose=False)
    return module.score


def origin(plan: Plan, run: Run) -> dict:
    """The fields of a record that are known before the training."""
    config = plan.config
    return {
        "study": config.study,
        "task": config.task.name,
        "protocol": config.protocol.name,
        "budget": config.budget,
        "label": config.label,
        "seed": run.seed,
        "fingerprint": run.fingerprint,
        "git": record.git_commit(),
        "metric": config.task.metric,
    }
