"""Pretraining, the first phase of a run: the encoder is trained on the inputs of the task, without labels.

Pretraining has its own run directory, ``pretrain`` in the run directory, with ``pretrain.json`` instead of a
``record.json``.
"""

import contextlib
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..console import log
from ..ranks import on_rank_zero, rank
from ..runs import checkpoint, config_file, record
from ..runs.record import Pretraining
from ..runs.run_dir import MIXED, RunDir
from .lit import LitPretrainer
from .plan import Plan
from .trainer import run_phase

FOLDER = "pretrain"
# Choices in which a run may differ from the run of ``pretrain.from``: the schedule of the fine-tuning, the pooling
# (with its divisor ``protocol.mean_over``), the head, and how the task is scored. ``protocol.name`` is only a name: the
# other options of the protocol must agree. ``pretrain.matched`` acts through ``optim.steps`` and ``pretrain.steps``
# alone. A head of another size does change the pretraining a little: it draws its initial weights first, so the
# prediction layer gets other ones.
_FINE_TUNING = {
    "optim.lr",
    "optim.steps",
    "optim.warmup",
    "optim.batch",
    "optim.eval_every",
    "optim.cosine",
    "pretrain.matched",
}
_READOUT = (
    "model.head",
    "model.pool",
    "task.metric",
    "task.loss",
    "task.outputs",
    "protocol.mean_over",
    "protocol.name",
)


def run(plan: Plan, run_dir: RunDir) -> Pretraining:
    """Train the encoder of a run, or resume it, or read its record if it is finished.

    Raises:
        ValueError: a checkpoint or record cannot be used, or ``pretrain.from`` was pretrained with other choices.
    """
    experiment = plan.experiment
    pretrain_dir = PretrainDir(
        path=run_dir.path / FOLDER,
        choices=choices_of(run_dir.choices),
        seed=run_dir.seed,
        title=f"{run_dir.title} {FOLDER}",
        source=experiment.pretrain.from_,
    )
    pretraining = pretrain_dir.find_or_copy_finished()
    if pretraining:
        # No single commit has the code of both phases, so the record marks its commit as -dirty.
        if pretrain_dir.code == MIXED:
            run_dir.code = MIXED
        return pretraining

    # Hash the files of custom classes now, because they may be edited during training.
    sources = config_file.custom_code_digests(pretrain_dir.choices)

    # 1. Pretraining has its own schedule and no logger.
    optim = experiment.pretrain.pretraining_optim(experiment.optim)
    pretrain_plan = dataclasses.replace(plan, experiment=experiment.replace(optim=optim, logger={}))

    # 2. Model and data.
    torch.manual_seed(run_dir.seed)
    model = pretrain_plan.experiment.pretrainer()
    data = pretrain_plan.experiment.task_data(run_dir.seed)
    module = LitPretrainer.of(pretrain_plan.experiment, model, run_dir.seed)

    # 3. Fit, and write the record.
    phase = run_phase(pretrain_plan, pretrain_dir, module, data)
    # As for a resumed phase: no single commit has the code of both phases.
    if pretrain_dir.code == MIXED:
        run_dir.code = MIXED
    pretraining = Pretraining(
        objective=experiment.pretrain.phase_objective(),
        fingerprint=pretrain_dir.fingerprint,
        loss=None if phase.best_score is None else -phase.best_score,
        best_step=phase.best_step,
        steps=phase.steps,
        tokens=data.count_tokens(phase.steps),
        step_ms=phase.step_ms,
        status=phase.status,
        sources=sources,
    )
    pretrain_dir.finish_pretraining(pretraining)
    message = f"{pretrain_dir.title}: {pretraining.status}"
    if pretraining.loss is not None:
        message += f", validation loss {pretraining.loss:.4f} at step {pretraining.best_step:,}"
    log(message)
    return pretraining


def load_encoder(model: nn.Module, run_path: Path) -> None:
    """Load the pretrained encoder into a classifier, whose pooling and head stay as they are.

    Args:
        model: the classifier.
        run_path: path of the run directory.

    Raises:
        ValueError: the weights are not the encoder of this model.
    """
    path = run_path / FOLDER / checkpoint.BEST
    weights = checkpoint.read_weights(path)
    try:
        missing_keys = model.load_state_dict(weights, strict=False).missing_keys
        fits = all(name.startswith("head.") for name in missing_keys)
    # A parameter has another shape.
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(f"{path} does not hold the encoder of this model; delete its folder to run that seed again")


def choices_of(choices: dict[str, Any]) -> dict[str, Any]:
    """Select the choices of a run, flat, that decide the result of its pretraining."""
    # The trailing dot lets a prefix match a whole option, or a section with its options.
    readout_prefixes = tuple(f"{name}." for name in _READOUT)
    selected = {}
    for key, value in choices.items():
        is_readout = f"{key}.".startswith(readout_prefixes)
        if key not in _FINE_TUNING and not is_readout:
            selected[key] = value
    return selected


@dataclass(kw_only=True)
class PretrainDir(RunDir):
    """The run directory of a pretraining. Its choices are a subset of the choices of the run.

    Args:
        source: another run, or the folder of its seeds, to copy the pretraining from; None to train it.
    """

    source: Path | None = None

    def find_or_copy_finished(self) -> Pretraining | None:
        """Create the directory, and find the record of a finished pretraining in it or in ``source``.

        Returns:
            The record; None if the encoder has to be pretrained.

        Raises:
            ValueError: the record or the source cannot be used.
        """
        return on_rank_zero(self._find)

    def _find(self) -> Pretraining | None:
        path = self.path / record.PRETRAIN_NAME
        run_path = self.path.parent
        if not path.exists() and (run_path / checkpoint.LAST).exists():
            remedy = f"restore that folder, or delete {run_path} to run that seed again"
            raise ValueError(f"{path} is missing, but the fine-tuning after it has begun; {remedy}")
        self.path.mkdir(parents=True, exist_ok=True)
        if not path.exists() and self.source:
            self._copy_from(self.source)
        if not path.exists():
            return None
        pretraining = record.load_pretraining(path, self.fingerprint)
        remedy = "delete that folder to pretrain again"
        config_file.check_custom_code(self.path, self.choices, pretraining.sources, remedy=remedy)
        if self._find_code() not in (None, config_file.code_digest()):
            self.code = MIXED
            log(f"{self.title}: warning: the code of lra has changed since this pretraining began")
        return pretraining

    def _find_code(self) -> str | None:
        """The code of a finished pretraining, from its state or the one in ``source``; None if neither names it."""
        folders = [self.path]
        # A copied pretraining has no state.
        if self.source:
            folders += [self.source / FOLDER, self.source / f"seed-{self.seed}" / FOLDER]
        for folder in folders:
            # A damaged state does not matter: the weights are complete. Early versions do not name their code.
            with contextlib.suppress(ValueError):
                state = checkpoint.read_state(folder / checkpoint.LAST, self.fingerprint)
                if state:
                    return state["callbacks"][checkpoint.CALLBACK].get("code")
        return None

    def _copy_from(self, source: Path) -> None:
        """Copy the pretraining of another run. Raises ValueError if it is damaged, not finished, or differs."""
        seed_name = f"seed-{self.seed}"
        candidates = [path for path in (source, source / seed_name) if (path / FOLDER / record.PRETRAIN_NAME).exists()]
        if not candidates:
            raise ValueError(f"pretrain.from={source}: no finished pretraining in it or in its {seed_name}")
        source_run = candidates[0]
        source_folder = source_run / FOLDER
        pretraining = record.load_pretraining(source_folder / record.PRETRAIN_NAME)

        # It must be the pretraining that this run would do.
        if pretraining.fingerprint != self.fingerprint:
            source_choices = choices_of(config_file.read(source_run / config_file.NAME))
            difference = config_file.difference(source_choices, self.choices) or "seed"
            raise ValueError(f"pretrain.from={source} was pretrained in another way ({difference})")
        remedy = "pretrain again without pretrain.from"
        config_file.check_custom_code(source_folder, self.choices, pretraining.sources, remedy=remedy)

        # Neither file exists if pretraining diverged before its first evaluation; ``copy`` skips unlisted files.
        for name in (checkpoint.METRICS, checkpoint.BEST):
            checkpoint.copy(source_folder / name, self.path, remedy=remedy)
        record.save_pretraining(pretraining, self.path)

    def finish_pretraining(self, pretraining: Pretraining) -> None:
        """Write ``pretrain.json``."""
        if rank() == 0:
            record.save_pretraining(pretraining, self.path)
