"""Checkpoint files, verified when read: the CRC-32 that torch writes beside each tensor, and the sum in the record."""

import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from ..disk import atomic
from ..disk.atomic import Unreadable, opened
from .typed_json import FORM, verify

LAST, BEST = "last.ckpt", "best.ckpt"  # state of the training; weights with the best dev score
CALLBACK = "Checkpoints"  # class of lra.train.trainer in whose state last.ckpt has what is ours
_PARTS = {"callbacks", "global_step", "loops", "lr_schedulers", "optimizer_states", "state_dict"}
_OURS = {"form", "fingerprint", "curve", "best_score", "best_step", "train_loss", "digest"}
AGAIN = "delete its folder to run that seed again"


def read(path: Path) -> Any:
    """Read a checkpoint onto the CPU. Raises ValueError if the file is missing, damaged or no checkpoint."""
    try:
        verify(path)
        with opened(path) as file:
            _check_crc(file)
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # zipfile and torch raise exceptions of any class for damaged files
        reason = str(error) if isinstance(error, Unreadable) else f"it is damaged or no checkpoint: {_brief(error)}"
        raise ValueError(f"{path} cannot be used ({reason}); {AGAIN}") from None


def _check_crc(file: BinaryIO) -> None:
    with zipfile.ZipFile(file) as parts:
        for part in parts.infolist():
            if part.compress_type != zipfile.ZIP_STORED or part.external_attr & 16:  # torch ignores folders
                raise Unreadable(f"torch did not write its part {part.filename!r}")
        if name := parts.testzip():
            raise Unreadable(f"its part {name} is damaged")
    file.seek(0)


def weights(path: Path) -> dict[str, Tensor]:
    """Read the weights of a best.ckpt. Raises ValueError if it holds anything else."""
    held = read(path)
    if not _are_weights(held):
        raise ValueError(f"{path} does not hold finite weights by their names; {AGAIN}")
    return held


def state(path: Path) -> dict | None:
    """Read a last.ckpt; None without one. Raises ValueError if it is not the state of a run."""
    if not path.exists() and not path.is_symlink():
        return None
    held = read(path)
    callbacks = held["callbacks"] if _has(held, _PARTS) else None
    ours = callbacks[CALLBACK] if _has(callbacks, {CALLBACK}) else None
    rows = ours["curve"] if _has(ours, _OURS) else None
    has_rows = isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)
    if not has_rows or not _are_weights(held["state_dict"]):
        raise ValueError(f"{path} is not the state of a run of this version; {AGAIN}")
    if ours["form"] != FORM:
        raise ValueError(f"{path} has form {ours['form']} instead of {FORM}: another version made it; {AGAIN}")
    return held


def _has(held: Any, names: set[str]) -> bool:
    return isinstance(held, dict) and names <= held.keys()


def _are_weights(held: Any) -> bool:
    """Whether an object is a dict of finite tensors by name. A run whose weights are not finite saves none."""
    if not isinstance(held, dict) or not all(isinstance(name, str) for name in held):
        return False
    there = lambda value: isinstance(value, Tensor) and value.device.type == "cpu" and value.layout is torch.strided
    return all(there(value) and bool(value.isfinite().all()) for value in held.values())


def load_weights(model: nn.Module, path: Path, digest: str | None = None) -> None:
    """Load the weights of a best.ckpt into a model.

    Args:
        model: the model.
        path: path of the file.
        digest: sha256 that it must have, if one is given.

    Raises:
        ValueError: the weights cannot be read, are others or do not fit.
    """
    if digest and atomic.digest(path) != digest:
        raise ValueError(f"{path} cannot be used (this training wrote another one); {AGAIN}")
    held = weights(path)
    try:
        model.load_state_dict(held)
    except RuntimeError as error:
        raise ValueError(f"{path} does not hold the weights of this model ({_brief(error)}); {AGAIN}") from None


def _brief(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:200]


def disk_bytes(params: int) -> int:
    """The size of a seed on the disk in bytes: weights, two moments of AdamW and the best weights, all in 32 bits."""
    return 16 * params
