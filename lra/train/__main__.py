"""python -m lra.train task=listops attn=cur_abs: every seed of one configuration, skipped, resumed or run."""

if __name__ == "__main__":
    from lra.startup import begin

    begin()  # before torch is imported

import contextlib
from datetime import UTC, datetime

import torch
from torch import nn

from .. import __version__
from ..config.entry import main
from ..config.experiment import Experiment
from ..console import log
from ..data import bag
from ..runs import checkpoint, record, scores
from ..runs.folder import RunFolder, writing
from . import diagnostics, distributed, machine, pretrain
from .lit import LitClassifier
from .plan import Plan, check_data, resolve
from .trainer import Phase, run_phase


@main(Experiment)
def train(experiment: Experiment) -> None:
    """Run each seed in runs/<study>/<task>/<label>/seed-<k>; raises ValueError for a configuration that cannot run."""
    if reason := experiment.unavailable:
        if not experiment.multirun:
            raise ValueError(reason)
        log(f"skipped: {reason}")
        return
    plan = resolve(experiment)
    if plan.processes.to_launch:
        distributed.launch(plan.processes.count, experiment.command_overrides)
        return
    with distributed.group(plan.processes):
        run_seeds(plan)


def run_seeds(plan: Plan) -> None:
    """Set up the data, check that it fits the model, and run one seed after the other."""
    experiment, data = plan.experiment, plan.data
    distributed.on_rank_zero(data.setup)  # generated data is made once
    data.setup()
    check_data(experiment, data)
    o, number = experiment.optim, f"{len(experiment.seeds)} seed{'s' if len(experiment.seeds) > 1 else ''}"
    log(
        f"{plan.title}: {number} of {o.steps:,} steps of {o.batch}, "
        f"dev ({len(data.splits['val']):,} examples) every {o.eval_every}; {plan.params:,} parameters; "
        f"about {max(1, round(checkpoint.disk_bytes(plan.params) / 2**20))} MB a seed in {experiment.home}"
    )
    if plan.device == "cpu" and experiment.trainer.precision == "bf16" and not machine.multiplies_bf16():
        log(f"{plan.title}: this processor has no products of 16-bit numbers; trainer.precision=fp32 is faster here")
    if experiment.data.pad == "compact" and data.pad != "compact":
        log(f"{plan.title}: rows keep their padding, because the result depends on where it is: data.pad=batch")
    if experiment.data.pad == "none" and not experiment.sketch.packed:
        log(f"{plan.title}: rows keep their padding, because the blocks compute whole rows: data.pad=batch")
    choices = experiment.choices(data.source.provenance)
    for seed in experiment.seeds:
        run_seed(plan, seed, choices)
    if line := scores.summary(experiment.home):
        log(f"{line}; {scores.report_command(experiment.study, experiment.runs)}")


def run_seed(plan: Plan, seed: int, choices: dict) -> None:
    """Run one seed, unless its folder holds its record already or another process has it."""
    title = f"{plan.title} seed {seed}"
    with contextlib.ExitStack() as held:
        claim = RunFolder.claim(plan.folder(seed), title, choices, seed)
        run = distributed.on_rank_zero(lambda: held.enter_context(claim))
        if run is None:
            return
        if done := distributed.on_rank_zero(run.done):
            log(f"{title}: {done.status} before, skipped")
            return
        with writing(run.path):
            result = fit(plan, run)
            if distributed.rank() == 0:
                run.finish(result)
    log(f"{title}: {result.outcome}")
    if result.collapsed:
        log(f"{title}: {diagnostics.COLLAPSED}{diagnostics.DEAD if result.live_units == 0 else ''}")


def fit(plan: Plan, run: RunFolder, model: nn.Module | None = None) -> record.RunRecord:
    """Train, or resume, one seed and score its best dev checkpoint on the test set once.

    Args:
        plan: plan of the configuration.
        run: folder of the seed.
        model: model to start from; None for a new classifier, whose encoder ``plan.experiment.pretrain`` trains first.

    Raises:
        ValueError: a checkpoint cannot be used.
        KeyboardInterrupt: with the step that the same command resumes from.
    """
    experiment = plan.experiment
    machine.prepare(plan.device, experiment.trainer.threads)
    first = pretrain.phase_one(plan, run) if model is None and experiment.pretrained else None
    torch.manual_seed(run.seed)
    model = experiment.classifier() if model is None else model.train()
    if first and first.status == "done":
        pretrain.load_encoder(model, run.path)
    data, module = experiment.task_data(run.seed), LitClassifier(experiment, model, run.seed)
    if first and first.status == "diverged":
        data.setup()
        phase = Phase()
    else:
        phase = run_phase(plan, run, module, data)
    score, diagnosed = None, {}
    if phase.status == "done":
        checkpoint.load_weights(model, run.weights, phase.digest)  # of the best dev score
        phase.trainer.test(module, data, verbose=False)
        score = module.score
        diagnosed = diagnostics.of_best(phase.trainer, module)
    constant = data.baseline("test", module.metric)
    result = record.RunRecord(
        study=experiment.study,
        task=experiment.task.name,
        protocol=experiment.protocol.name,
        budget=experiment.budget,
        label=experiment.label,
        seed=run.seed,
        fingerprint=run.fingerprint,
        params=sum(p.numel() for p in model.parameters()),
        metric=experiment.task.metric,
        val=phase.best_score,
        test=score,
        constant_baseline=constant,
        floor=max(constant, data.source.floor or 0.0),
        bag=bag.read(bag.path(data, experiment.task.metric)),
        n_val=len(data.splits["val"]),
        n_test=len(data.splits["test"]),
        best_step=phase.best_step,
        steps=phase.steps,
        tokens=data.tokens(phase.steps),
        step_ms=phase.step_ms,
        peak_bytes=machine.peak_bytes(plan.device),
        device=machine.device_name(plan.device, plan.processes.count),
        status=phase.status,
        pretrain=first,
        data=data.source.substitute,
        train_loss=diagnostics.finite(phase.train_loss),
        lr=experiment.optim.lr,
        **diagnosed,
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
