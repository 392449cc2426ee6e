"""Training of every seed of one configuration."""

import gc
from datetime import UTC, datetime

import torch
from torch import nn

from .. import __version__
from ..config.experiment import Experiment
from ..console import log
from ..ranks import on_rank_zero, rank_zero_first
from ..runs import config_file, record
from ..runs.reader import SeedDirs, warn_of_missing_files
from ..runs.run_dir import MIXED, RunDir
from . import device, diagnostics, distributed, pretrain
from .baselines import Baselines
from .lit import LitClassifier
from .plan import Plan, check_labels_and_tokens, make_plan
from .trainer import Phase, resumable, run_phase


def run(experiment: Experiment) -> None:
    """Train each seed in runs/<study>/<task>/<label>/seed-<k>.

    A seed with a record, finished or diverged, is skipped; an interrupted one is resumed.

    Raises:
        ValueError: the configuration cannot run.
    """
    # Record the commit and the code now, because the checkout may change during training. Clear the commit that an
    # earlier job of -m has cached: this job has only now imported its mechanism.
    record.git_commit.cache_clear()
    record.git_commit()
    config_file.code_digest()
    # Also hash the files of custom classes, which may change while the data are prepared.
    config_file.custom_code_digests(experiment.to_dict())
    reason = experiment.unavailable
    if reason and experiment.multirun:
        log(f"skipped: {reason}")
        return
    if reason:
        raise ValueError(reason)
    plan = make_plan(experiment)
    # Several devices without torchrun or srun: this process only launches the ranks, and each rank runs the same
    # command.
    if plan.processes.to_launch:
        distributed.launch(plan.processes.count, experiment.command_overrides)
        return
    with distributed.group(plan.processes):
        run_seeds(plan)


def run_seeds(plan: Plan) -> None:
    """Set up the data, check it against the options of the task, and run the seeds one after the other."""
    experiment = plan.experiment
    # Rank 0 generates missing data; then all ranks open it.
    with rank_zero_first():
        plan.data.setup()
    check_labels_and_tokens(experiment.task, plan.data, has_class_id=experiment.model.pool == "cls")
    for message in plan.messages():
        log(f"{plan.title}: {message}")

    # The choices that decide the result become config.yaml and the fingerprint.
    choices = experiment.choices(plan.data.source.provenance)
    seed_dirs = SeedDirs(experiment.home)
    on_rank_zero(lambda: seed_dirs.check_custom_code(choices))
    for seed in experiment.seeds:
        run_dir = RunDir(path=seed_dirs.path(seed), choices=choices, seed=seed, title=f"{plan.title} seed {seed}")
        run_seed(plan, run_dir)

    # Mean and standard deviation over all finished seeds of this folder, and the gain over attn=mean.
    summary = seed_dirs.summary()
    if summary:
        log(f"{summary}; {experiment.report_command}")


def run_seed(plan: Plan, run_dir: RunDir) -> None:
    """Run one seed, unless its record exists or another process runs it."""
    with run_dir.open() as is_open:
        # Another process holds the lock; ``open`` has logged it.
        if not is_open:
            return
        if run_dir.record:
            log(f"{run_dir.title}: skipped, already {run_dir.record.status}")
            warn_of_missing_files(run_dir.path)
            return
        run_dir.record = train_and_test(plan, run_dir)
        run_dir.finish()
    log(f"{run_dir.title}: {run_dir.record.outcome}")
    if run_dir.record.collapsed:
        log(f"{run_dir.title}: {diagnostics.advice(run_dir.record.live_units)}")


def train_and_test(plan: Plan, run_dir: RunDir, model: nn.Module | None = None) -> record.RunRecord:
    """Train one seed, or resume it, and score its best weights on the test set.

    Args:
        plan: plan of the configuration.
        run_dir: run directory of the seed.
        model: model to train, without pretraining. None: a new classifier, pretrained first if the experiment says so.

    Raises:
        ValueError: a checkpoint cannot be used.
        KeyboardInterrupt: training was interrupted; the message gives the step from which the same command resumes.
    """
    experiment = plan.experiment
    device.prepare_process(plan.device, experiment.trainer.threads)
    # Hashes of the files of custom classes; they are cached, so ``lra train`` gets the ones that ``run`` computed.
    sources = config_file.custom_code_digests(run_dir.choices)
    # Record of the pretraining; None without pretraining.
    pretraining = None
    if model is None and experiment.pretrained:
        pretraining = pretrain.run(plan, run_dir)
        # The optimiser and the data of pretraining are in reference cycles with its trainer.
        gc.collect()

    # 1. Model and data.
    # Seed again after pretraining: the head gets the same initial weights whether pretraining ran now, was resumed, or
    # was finished before.
    torch.manual_seed(run_dir.seed)
    model = experiment.classifier() if model is None else model.train()
    # The data of ``plan.data``, in the training order of this seed.
    data = experiment.task_data(run_dir.seed)
    module = LitClassifier.of(experiment, model, run_dir.seed)

    # 2. Fit. If pretraining diverged, skip the fit; the record still needs the data.
    if pretraining and pretraining.status == "diverged":
        data.setup()
        phase = Phase(status="diverged")
    else:
        if pretraining:
            pretrain.load_encoder(model, run_dir.path)
        phase = run_phase(plan, run_dir, module, data)

    # 3. Evaluate the weights with the best validation score.
    test_score = None
    diagnosis = {}
    if phase.status == "done":
        # Only a phase that diverged may have no trainer.
        assert phase.trainer is not None
        model.load_state_dict(run_dir.best_weights())
        # Reseed, so that an evaluation that draws random numbers draws the same ones after a resume.
        torch.manual_seed(run_dir.seed)
        with resumable(phase.trainer, run_dir):
            phase.trainer.test(module, data, verbose=False)
            # Read the score first: the diagnostics evaluate the validation set and overwrite it.
            test_score = module.score
        with resumable(phase.trainer, run_dir):
            diagnosis = diagnostics.of_best(phase.trainer, module, experiment.trainer.precision)

    # 4. The record.
    baselines = Baselines(data, experiment.task.metric)
    commit = record.git_commit()
    # If other code resumed the run, no single commit contains the code of all steps.
    if commit and run_dir.code == MIXED and not commit.endswith("-dirty"):
        commit = f"{commit}-dirty"
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
        constant_baseline=baselines.constant,
        # ``floor`` and ``bag`` are the field names of published records.
        floor=baselines.chance,
        bag=baselines.bag_of_tokens,
        n_val=len(data.splits["val"]),
        n_test=len(data.splits["test"]),
        best_step=phase.best_step,
        steps=phase.steps,
        tokens=data.count_tokens(phase.steps),
        step_ms=phase.step_ms,
        peak_bytes=device.peak_bytes(plan.device),
        device=device.device_name(plan.device, plan.processes.count),
        status=phase.status,
        pretrain=pretraining,
        # Prefix of the checksum of a substitute for the official data file, else None.
        data=data.source.substitute,
        train_loss=diagnostics.finite(phase.train_loss),
        lr=experiment.optim.lr,
        # Validation loss, spread of the outputs, live hidden units, collapse; nothing if the run diverged.
        **diagnosis,
        git=commit,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=record.command(experiment.command_overrides),
        torch=torch.__version__,
        suite=__version__,
        processor=record.processor(),
        sources=sources,
    )
    if phase.trainer:
        for logger in phase.trainer.loggers:
            logger.log_record(result)
    return result
