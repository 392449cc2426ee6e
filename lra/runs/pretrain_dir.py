"""The directory of pretraining, phase one of a run: ``pretrain`` in its run directory, with ``pretrain.json``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..disk import atomic, typed_json
from ..ranks import on_rank_zero, rank
from . import checkpoint, config_file, metrics_file
from .record import FILES, Pretraining
from .run_dir import RunDir

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


@dataclass(kw_only=True)
class PretrainDir(RunDir):
    """A run directory of phase one. Its choices are a subset of the choices of the run.

    Args:
        source: another run, or the folder of its seeds, to copy phase one from; None to train it.
    """

    source: Path | None = None

    def find_finished(self) -> Pretraining | None:
        """Create the directory, and find the record of a finished phase one in it or in ``source``.

        Returns:
            The record; None if phase one has to be trained.

        Raises:
            ValueError: the record or the source cannot be used.
        """
        return on_rank_zero(self._find)

    def _find(self) -> Pretraining | None:
        # A link instead of the folder would lead to another run.
        atomic.below(self.path.parent, self.path.name).mkdir(exist_ok=True)
        path = self.path / NAME
        if not path.exists() and self.source:
            self._copy_from(self.source)
        return load(path, self.fingerprint) if path.exists() else None

    def _copy_from(self, source: Path) -> None:
        """Copy the phase one of another run. Raises ValueError if it is damaged, not finished, or another one."""
        seed_name = f"seed-{self.seed}"
        candidates = [path for path in (source, source / seed_name) if (path / FOLDER / NAME).exists()]
        if not candidates:
            raise ValueError(f"pretrain.from={source}: no finished pretraining in it or in its {seed_name}")
        source_run = candidates[0]
        source_folder = source_run / FOLDER
        pretraining = load(source_folder / NAME)

        # It must be the phase one that this run would train.
        if pretraining.fingerprint != self.fingerprint:
            source_choices = choices_of(config_file.read(source_run / config_file.NAME))
            difference = config_file.difference(source_choices, self.choices) or "seed"
            raise ValueError(f"pretrain.from={source} was pretrained in another way ({difference})")

        for path in (source_folder / metrics_file.NAME, source_folder / checkpoint.BEST):
            # A phase one that diverged before its first evaluation has neither file.
            if typed_json.listed(path):
                self._copy_file(path)
        save(pretraining, self.path)

    def _copy_file(self, path: Path) -> None:
        try:
            atomic.copy(path, self.path / path.name, lambda copy: typed_json.verify(path, copy))
        except atomic.Unreadable as error:
            raise ValueError(f"{path} cannot be used ({error}); pretrain again without pretrain.from") from None

    def finish_pretraining(self, pretraining: Pretraining) -> None:
        """Write ``pretrain.json``."""
        if rank() == 0:
            save(pretraining, self.path)


def encoder(run_path: Path) -> tuple[Path, dict[str, Tensor]]:
    """Read the best encoder of phase one of a run. Raises ValueError if it cannot be read.

    Returns:
        The path of the file, for messages, and the weights.
    """
    path = run_path / FOLDER / checkpoint.BEST
    return path, checkpoint.weights(path)
