"""Phase one of a pretrained run: its encoder on the task's own inputs, in the folder ``pretrain`` of the run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..config.experiment import Experiment
from ..console import log
from ..disk import atomic
from ..runs import checkpoint, config_file, evaluations, identity, pretraining, typed_json
from ..runs.folder import RunFolder
from ..runs.record import Pretraining
from . import distributed
from .lit import LitPretrainer
from .plan import Plan
from .trainer import run_phase


def phase_one(plan: Plan, run: RunFolder) -> Pretraining:
    """Train the encoder of a run, or resume it, or read the record of it if it is done.

    Raises:
        ValueError: a checkpoint or record cannot be used, or ``pretrain.from`` is of another phase one.
    """
    choices, path = run.choices | {"seed": run.seed}, run.path / pretraining.FOLDER
    done = distributed.on_rank_zero(lambda: before(plan.experiment, path, choices))
    if done:
        return done
    own_optim = plan.experiment.pretrain.of(plan.experiment.optim)
    one = replace(plan, experiment=plan.experiment.changed(optim=own_optim, logger={}))
    own = pretraining.choices_of(run.choices)
    here = RunFolder(path=path, choices=own, seed=run.seed, title=f"{run.title} {pretraining.FOLDER}")
    torch.manual_seed(run.seed)
    model, data = one.experiment.pretrainer(), one.experiment.task_data(run.seed)
    phase = run_phase(one, here, LitPretrainer(one.experiment, model, run.seed), data)
    made = Pretraining(
        objective=plan.experiment.pretrain.objective,
        fingerprint=here.fingerprint,
        loss=None if phase.best_score is None else -phase.best_score,
        best_step=phase.best_step,
        steps=phase.steps,
        tokens=data.tokens(phase.steps),
        step_ms=phase.step_ms,
        status=phase.status,
    )
    if distributed.rank() == 0:
        pretraining.save(made, path)
        found = "" if made.loss is None else f", dev loss {made.loss:.4f} at step {made.best_step:,}"
        log(f"{here.title}: {made.status}{found}")
    return made


def before(experiment: Experiment, folder: Path, choices: dict[str, Any]) -> Pretraining | None:
    """The record of a phase one that is done, in its folder or where ``pretrain.from`` says; None if there is none.

    The folder is made.
    """
    atomic.below(folder.parent, folder.name).mkdir(exist_ok=True)
    path = folder / pretraining.NAME
    if not path.exists() and (other := experiment.pretrain.from_):
        _take(other, folder, choices)
    return pretraining.load(path, pretraining.fingerprint(choices)) if path.exists() else None


def _take(other: Path, folder: Path, choices: dict[str, Any]) -> None:
    """Copy the phase one of another run. Raises ValueError if it is damaged, not done, or another one."""
    seed = f"seed-{choices['seed']}"
    run = next((run for run in (other, other / seed) if (run / pretraining.FOLDER / pretraining.NAME).exists()), None)
    if run is None:
        raise ValueError(f"pretrain.from={other} is no run, and no folder of a {seed}, whose pretraining is done")
    theirs, there = config_file.read(run / config_file.NAME), run / pretraining.FOLDER
    found = pretraining.load(there / pretraining.NAME)
    if found.fingerprint != pretraining.fingerprint(choices):
        same = pretraining.choices_of(theirs | {"seed": choices["seed"]}), pretraining.choices_of(choices)
        difference = identity.difference(*same) or "seed"
        raise ValueError(f"pretrain.from={other} was pretrained in another way ({difference})")
    for source in (there / name for name in (evaluations.NAME, checkpoint.BEST)):
        if typed_json.listed(source):  # a phase one may diverge before its first evaluation
            try:
                atomic.copy(source, folder / source.name, lambda copy, of=source: typed_json.verify(of, copy))
            except atomic.Unreadable as error:
                raise ValueError(f"{source} cannot be used ({error}); pretrain again without pretrain.from") from None
    pretraining.save(found, folder)


def load_encoder(model: nn.Module, run: Path) -> None:
    """Put the encoder of phase one into a classifier, whose pooling and head stay. Raises ValueError if it is none."""
    path = run / pretraining.FOLDER / checkpoint.BEST
    encoder = checkpoint.weights(path)
    try:
        missing = model.load_state_dict(encoder, strict=False).missing_keys
    except RuntimeError:
        missing = ["shapes"]
    if any(not name.startswith("head.") for name in missing):
        raise ValueError(f"{path} does not hold the encoder of this model; delete its folder to run that seed again")
