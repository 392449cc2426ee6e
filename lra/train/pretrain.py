"""Pretraining, phase one of a run: the encoder is trained on the inputs of the task, without labels."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from ..console import log
from ..runs.pretrain_dir import FOLDER, PretrainDir, choices_of, encoder
from ..runs.record import Pretraining
from ..runs.run_dir import RunDir
from .lit import LitPretrainer
from .plan import Plan
from .trainer import run_phase


def run(plan: Plan, run_dir: RunDir) -> Pretraining:
    """Train the encoder of a run, or resume it, or read its record if it is finished.

    Raises:
        ValueError: a checkpoint or record cannot be used, or ``pretrain.from`` is another phase one.
    """
    experiment = plan.experiment
    pretrain_dir = PretrainDir(
        path=run_dir.path / FOLDER,
        choices=choices_of(run_dir.choices),
        seed=run_dir.seed,
        title=f"{run_dir.title} {FOLDER}",
        source=experiment.pretrain.from_,
    )
    pretraining = pretrain_dir.find_finished()
    if pretraining:
        return pretraining

    # 1. Phase one has its own schedule and no logger.
    optim = experiment.pretrain.of(experiment.optim)
    plan = replace(plan, experiment=experiment.replace(optim=optim, logger={}))

    # 2. Model and data.
    torch.manual_seed(run_dir.seed)
    model = plan.experiment.pretrainer()
    data = plan.experiment.task_data(run_dir.seed)
    module = LitPretrainer.of(plan.experiment, model, run_dir.seed)

    # 3. Fit, and write the record.
    phase = run_phase(plan, pretrain_dir, module, data)
    pretraining = Pretraining(
        objective=experiment.pretrain.objective,
        fingerprint=pretrain_dir.fingerprint,
        loss=None if phase.best_score is None else -phase.best_score,
        best_step=phase.best_step,
        steps=phase.steps,
        tokens=data.tokens(phase.steps),
        step_ms=phase.step_ms,
        status=phase.status,
    )
    pretrain_dir.finish_pretraining(pretraining)
    message = f"{pretrain_dir.title}: {pretraining.status}"
    if pretraining.loss is not None:
        message += f", validation loss {pretraining.loss:.4f} at step {pretraining.best_step:,}"
    log(message)
    return pretraining


def load_encoder(model: nn.Module, run_path: Path) -> None:
    """Load the encoder of phase one into a classifier, whose pooling and head stay as they are.

    Args:
        model: the classifier.
        run_path: path of the run directory.

    Raises:
        ValueError: the weights are not the encoder of this model.
    """
    path, weights = encoder(run_path)
    try:
        missing_keys = model.load_state_dict(weights, strict=False).missing_keys
    except RuntimeError:
        missing_keys = ["shapes"]
    if any(not name.startswith("head.") for name in missing_keys):
        raise ValueError(f"{path} does not hold the encoder of this model; delete its folder to run that seed again")
