"""python -m lra.train task=listops attn=cur_abs: train and score every seed of one configuration.

Seeds that are finished are skipped; interrupted ones are resumed.
"""

from datetime import UTC, datetime

import torch
from torch import nn

from .. import __version__
from ..config.entry import main
from ..config.experiment import Experiment
from ..console import log
from ..data import bag
from ..ranks import on_rank_zero
from ..runs import reader, record
from ..runs.run_dir import RunDir
from . import device, diagnostics, distributed, pretrain
from .lit import LitClassifier
from .plan import Plan, check_data, resolve
from .trainer import Phase, run_phase


@main(Experiment)
def train(experiment: Experiment) -> None:
    """Train each seed in runs/<study>/<task>/<label>/seed-<k>. Raises ValueError if a configuration cannot run."""
    reason = experiment.unavailable
    if reason and experiment.multirun:
        log(f"skipped: {reason}")
        return
    if reason:
        raise ValueError(reason)
    # A process that launches the others takes no part in the run.
    plan = resolve(experiment)
    if plan.processes.to_launch:
        distributed.launch(plan.processes.count, experiment.command_overrides)
        return
    with distributed.group(plan.processes):
        run_seeds(plan)


def run_seeds(plan: Plan) -> None:
    """Set up the data, check that it fits the model, and run one seed after the other."""
    # Rank 0 generates data that is not there yet.
    on_rank_zero(plan.data.setup)
    plan.data.setup()
    check_data(plan.experiment, plan.data)
    for message in plan.messages():
        log(f"{plan.title}: {message}")
    # The choices decide the result; they are config.yaml and the fingerprint.
    choices = plan.experiment.choices(plan.data.source.provenance)
    for seed in plan.experiment.seeds:
        run_seed(plan, seed, choices)
    summary = reader.summary(plan.experiment.home)
    if summary:
        log(f"{summary}; {reader.report_command(plan.experiment.study, plan.experiment.runs)}")


def run_seed(plan: Plan, seed: int, choices: dict) -> None:
    """Run one seed, unless its record exists or another process runs it."""
    run_dir = RunDir(path=plan.folder(seed), choices=choices, seed=seed, title=f"{plan.title} seed {seed}")
    with run_dir.open() as is_open:
        if not is_open:
            return
        if run_dir.record:
            log(f"{run_dir.title}: {run_dir.record.status} before, skipped")
            return
        run_dir.record = fit(plan, run_dir)
        run_dir.finish()
    log(f"{run_dir.title}: {run_dir.record.outcome}")
    if run_dir.record.collapsed:
        log(f"{run_dir.title}: {diagnostics.advice(run_dir.record.live_units)}")


def fit(plan: Plan, run_dir: RunDir, model: nn.Module | None = None) -> record.RunRecord:
    """Train one seed, or resume it, and score its best weights on the test set.

    Args:
        plan: plan of the configuration.
        run_dir: run directory of the seed.
        model: model to start from; None for a new classifier, whose encoder ``plan.experiment.pretrain`` trains first.

    Raises:
        ValueError: a checkpoint cannot be used.
        KeyboardInterrupt: stopped; the message has the step from which the same command resumes.
    """
    experiment = plan.experiment
    device.prepare_process(plan.device, experiment.trainer.threads)
    pretraining = pretrain.run(plan, run_dir) if model is None and experiment.pretrained else None

    # 1. Model and data.
    torch.manual_seed(run_dir.seed)
    model = experiment.classifier() if model is None else model.train()
    data = experiment.task_data(run_dir.seed)
    module = LitClassifier.of(experiment, model, run_dir.seed)

    # 2. Fit. A seed whose pretraining diverged ends here.
    if pretraining and pretraining.status == "diverged":
        data.setup()
        phase = Phase()
    else:
        if pretraining:
            pretrain.load_encoder(model, run_dir.path)
        phase = run_phase(plan, run_dir, module, data)

    # 3. Evaluate the weights with the best validation score.
    test_score = None
    diagnosis = {}
    if phase.status == "done":
        model.load_state_dict(run_dir.best_weights())
        phase.trainer.test(module, data, verbose=False)
        test_score = module.score
        diagnosis = diagnostics.of_best(phase.trainer, module, experiment.trainer.precision)

    # 4. The record.
    constant_baseline = data.baseline("test", module.metric)
    result = record.RunRecord(
        study=experiment.study,
        task=experiment.task.name,
        protocol=experiment.protocol.name,
        budget=experiment.budget,
        label=experiment.label,
        seed=run_dir.seed,
        fingerprint=run_dir.fingerprint,
        params=sum(parameter.numel() for parameter in model.parameters()),
        metric=experiment.task.metric,
        val=phase.best_score,
        test=test_score,
        constant_baseline=constant_baseline,
        floor=max(constant_baseline, data.source.floor or 0.0),
        bag=bag.read(bag.path(data, experiment.task.metric)),
        n_val=len(data.splits["val"]),
        n_test=len(data.splits["test"]),
        best_step=phase.best_step,
        steps=phase.steps,
        tokens=data.tokens(phase.steps),
        step_ms=phase.step_ms,
        peak_bytes=device.peak_bytes(plan.device),
        device=device.device_name(plan.device, plan.processes.count),
        status=phase.status,
        pretrain=pretraining,
        data=data.source.substitute,
        train_loss=diagnostics.finite(phase.train_loss),
        lr=experiment.optim.lr,
        **diagnosis,
        git=record.git_commit(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=record.command(experiment.command_overrides),
        torch=torch.__version__,
        suite=__version__,
        processor=record.processor(),
    )
    for logger in phase.trainer.loggers if phase.trainer else ():
        logger.log_record(result)
    return result


if __name__ == "__main__":
    train()
