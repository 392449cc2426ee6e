"""The record of phase one, ``pretrain/pretrain.json`` in the folder of a run, and the choices that decide it."""

from pathlib import Path
from typing import Any

from . import identity, typed_json
from .record import FILES, Pretraining

FOLDER, NAME = "pretrain", "pretrain.json"
# Phase one depends neither on these keys of a run nor on its head.
_FINE_TUNING = {f"optim.{key}" for key in ("lr", "steps", "warmup", "batch", "eval_every", "cosine")}
_FINE_TUNING.add("pretrain.matched")
_HEAD = ("model.head", "model.pool", "task.metric", "task.loss", "task.outputs", "protocol.mean_over", "protocol.name")


def choices_of(choices: dict[str, Any]) -> dict[str, Any]:
    """The choices of a run, flat, that decide the result of its phase one."""
    heads = tuple(f"{head}." for head in _HEAD)
    return {key: v for key, v in choices.items() if key not in _FINE_TUNING and not f"{key}.".startswith(heads)}


def fingerprint(choices: dict[str, Any]) -> str:
    """Identify a phase one by the choices of its run, flat and with the seed."""
    return identity.fingerprint(choices_of(choices))


def save(pretraining: Pretraining, folder: Path) -> None:
    """Write ``pretrain.json``, with the sums of the files beside it."""
    typed_json.save(pretraining, folder / NAME, FILES)


def load(path: Path, wanted: str | None = None) -> Pretraining:
    """Read a record.

    Args:
        path: path of the file.
        wanted: its fingerprint, if it must have a certain one.

    Raises:
        ValueError: the file is not a record of pretraining, or it has another fingerprint.
    """
    remedy = "delete its folder to pretrain again"
    pretraining = typed_json.parse(Pretraining, path, "a record of pretraining", remedy)
    if wanted is not None and pretraining.fingerprint != wanted:
        raise ValueError(f"{path} is the record of another pretraining; {remedy}")
    return pretraining
