"""The record of phase one, ``pretrain/pretrain.json`` in the folder of a run, and what it is a result of."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..disk import checksums
from . import record
from .record import Pretraining

FOLDER, NAME = "pretrain", "pretrain.json"
# Phase one looks neither at these keys of a run nor at its head, of which it has none.
_FINE_TUNING = ("optim.lr", "optim.steps", "optim.warmup", "optim.batch", "optim.eval_every", "pretrain.matched")
_HEAD = ("model.head", "model.pool", "task.metric", "task.loss", "task.outputs", "protocol.mean_over", "protocol.name")


def choices_of(choices: dict[str, Any]) -> dict[str, Any]:
    """The choices of a run, flat, that decide the result of its phase one."""
    inside = lambda key: any(key == head or key.startswith(f"{head}.") for head in _HEAD)
    return {key: value for key, value in choices.items() if key not in _FINE_TUNING and not inside(key)}


def fingerprint(choices: dict[str, Any]) -> str:
    """Identify a phase one by the choices of its run, flat and with the seed."""
    return record.fingerprint(choices_of(choices))


def save(made: Pretraining, folder: Path) -> None:
    checksums.save(folder / NAME, json.dumps(asdict(made), indent=2) + "\n")


def load(path: Path, wanted: str | None = None) -> Pretraining:
    """Read a record. Raises ValueError if the file is not one, or has another fingerprint than the one wanted."""
    remedy = "delete its folder to pretrain again"
    found = record.parse(Pretraining, path, "a record of pretraining", remedy)
    if wanted is not None and found.fingerprint != wanted:
        raise ValueError(f"{path} is the record of another pretraining; {remedy}")
    return found
