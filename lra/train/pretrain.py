"""Pretraining, phase one of a run: the encoder on the task's own inputs, in the folder ``pretrain`` of the run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..console import log
from ..disk import atomic, typed_json
from ..runs import checkpoint, config_file, metrics_file
from ..runs.record import FILES, Pretraining
from ..runs.run_dir import RunDir
from . import distributed
from .lit import LitPretrainer
from .plan import Plan
from .trainer import run_phase

FOLDER = "pretrain"
NAME = "pretrain.json"
# Choices of a run on which phase one does not depend: the schedule of the fine-tuning, and the head.
_FINE_TUNING = {f"optim.{key}" for key in ("lr", "steps", "warmup", "batch", "eval_every", "cosine")}
_FINE_TUNING.add("pretrain.matched")
_HEAD = ("model.head", "model.pool", "task.metric", "task.loss", "task.outputs", "protocol.mean_over", "protocol.name")


def choices_of(choices: dict[str, Any]) -> dict[str, Any]:
    """Select the choices of a run, flat, that decide the result of its phase one."""
    head_sections = tuple(f"{section}." for section in _HEAD)
    selected = {}
    for key, value in choices.items():
        is_of_head = f"{key}.".startswith(head_sections)
        if key not in _FINE_TUNING and not is_of_head:
            selected[key] = value
    return selected


def fingerprint(choices: dict[str, Any]) -> str:
    """Identify a phase one by the choices of its run, flat and with the seed."""
    return config_file.fingerprint(choices_of(choices))


def save(pretraining: Pretraining, folder: Path) -> None:
    """Write ``pretrain.json``, with the checksums of the other files in its folder."""
    typed_json.save(pretraining, folder / NAME, FILES)


def load(path: Path, fingerprint: str | None = None) -> Pretraining:
    """Read a record.

    Args:
        path: path of the file.
        fingerprint: fingerprint that the record must have; None for any.

    Raises:
        ValueError: the file is not a record of pretraining, or has another fingerprint.
    """
    remedy = "delete its folder to pretrain again"
    pretraining = typed_json.parse(Pretraining, path, "a record of pretraining", remedy)
    if fingerprint is not None and pretraining.fingerprint != fingerprint:
        raise ValueError(f"{path} is the record of another pretraining; {remedy}")
    return pretraining


def run(plan: Plan, run_dir: RunDir) -> Pretraining:
    """Train the encoder of a run, or resume it, or read its record if it is finished.

    Raises:
        ValueError: a checkpoint or record cannot be used, or ``pretrain.from`` is another phase one.
    """
    experiment = plan.experiment
    folder = run_dir.path / FOLDER
    choices = run_dir.choices | {"seed": run_dir.seed}
    finished = distributed.on_rank_zero(lambda: find_finished(experiment.pretrain.from_, folder, choices))
    if finished:
        return finished

    # Phase one has its own schedule and its own directory, and no logger.
    optim = experiment.pretrain.of(experiment.optim)
    phase_plan = replace(plan, experiment=experiment.changed(optim=optim, logger={}))
    title = f"{run_dir.title} {FOLDER}"
    phase_dir = RunDir(path=folder, choices=choices_of(run_dir.choices), seed=run_dir.seed, title=title)

    torch.manual_seed(run_dir.seed)
    model = phase_plan.experiment.pretrainer()
    data = phase_plan.experiment.task_data(run_dir.seed)
    module = LitPretrainer.of(phase_plan.experiment, model, run_dir.seed)
    phase = run_phase(phase_plan, phase_dir, module, data)

    pretraining = Pretraining(
        objective=experiment.pretrain.objective,
        fingerprint=phase_dir.fingerprint,
        loss=None if phase.best_score is None else -phase.best_score,
        best_step=phase.best_step,
        steps=phase.steps,
        tokens=data.tokens(phase.steps),
        step_ms=phase.step_ms,
        status=phase.status,
    )
    if distributed.rank() == 0:
        save(pretraining, folder)
        message = f"{title}: {pretraining.status}"
        if pretraining.loss is not None:
            message += f", validation loss {pretraining.loss:.4f} at step {pretraining.best_step:,}"
        log(message)
    return pretraining


def find_finished(source: Path | None, folder: Path, choices: dict[str, Any]) -> Pretraining | None:
    """Find the record of a finished phase one. The folder is created.

    Args:
        source: another run, or the folder of its seeds, to copy phase one from; None for none.
        folder: folder of phase one.
        choices: choices of the run, flat and with the seed.

    Returns:
        The record; None if phase one has to be trained.

    Raises:
        ValueError: the record or the source cannot be used.
    """
    atomic.below(folder.parent, folder.name).mkdir(exist_ok=True)
    path = folder / NAME
    if not path.exists() and source:
        _copy_from(source, folder, choices)
    return load(path, fingerprint(choices)) if path.exists() else None


def _copy_from(source: Path, folder: Path, choices: dict[str, Any]) -> None:
    """Copy the phase one of another run. Raises ValueError if it is damaged, not finished, or another one."""
    seed_name = f"seed-{choices['seed']}"
    candidates = [path for path in (source, source / seed_name) if (path / FOLDER / NAME).exists()]
    if not candidates:
        raise ValueError(f"pretrain.from={source}: no finished pretraining in it or in its {seed_name}")
    source_run = candidates[0]
    source_folder = source_run / FOLDER
    pretraining = load(source_folder / NAME)

    # It must be the phase one that this run would train.
    if pretraining.fingerprint != fingerprint(choices):
        source_choices = config_file.read(source_run / config_file.NAME) | {"seed": choices["seed"]}
        difference = config_file.difference(choices_of(source_choices), choices_of(choices)) or "seed"
        raise ValueError(f"pretrain.from={source} was pretrained in another way ({difference})")

    for path in (source_folder / metrics_file.NAME, source_folder / checkpoint.BEST):
        # A phase one that diverged before its first evaluation has neither file.
        if typed_json.listed(path):
            try:
                atomic.copy(path, folder / path.name, lambda copy, original=path: typed_json.verify(original, copy))
            except atomic.Unreadable as error:
                raise ValueError(f"{path} cannot be used ({error}); pretrain again without pretrain.from") from None
    save(pretraining, folder)


def load_encoder(model: nn.Module, run_path: Path) -> None:
    """Load the encoder of phase one into a classifier, whose pooling and head stay as they are.

    Args:
        model: the classifier.
        run_path: path of the run directory.

    Raises:
        ValueError: the weights are not the encoder of this model.
    """
    path = run_path / FOLDER / checkpoint.BEST
    encoder = checkpoint.weights(path)
    try:
        missing_keys = model.load_state_dict(encoder, strict=False).missing_keys
    except RuntimeError:
        missing_keys = ["shapes"]
    if any(not name.startswith("head.") for name in missing_keys):
        raise ValueError(f"{path} does not hold the encoder of this model; delete its folder to run that seed again")
