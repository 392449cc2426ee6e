"""The files that training writes at evaluations: last.ckpt, metrics.csv and, if the score is the best, best.ckpt.

All are verified when they are read: by the checksum in the record if there is one, and checkpoints by the CRC-32 of
each part of the zip file too.
"""

import csv
import errno
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd
import torch
from torch import Tensor, nn

from ..config.errors import is_out_of_memory
from ..io import atomic
from ..io.atomic import Unreadable, content, opened
from ..io.typed_json import FORM, recorded_digest, verify

# State of the training at the last evaluation; weights with the best validation score; one line per evaluation.
LAST = "last.ckpt"
BEST = "best.ckpt"
METRICS = "metrics.csv"
# The next best.ckpt, until the last.ckpt of its step is written.
NEXT_BEST = "next-best.ckpt"
# The callback of lra.train.callbacks whose state in last.ckpt holds the values of this suite.
CALLBACK = "Checkpoints"
REMEDY = "delete its folder to run that seed again"
# Maximum number of characters of an exception in a message.
_MESSAGE_LENGTH = 200


def read(path: Path, digest: str | None = None) -> Any:
    """Read a checkpoint onto the CPU.

    Args:
        path: path of the file.
        digest: sha256 that the file must have; None for any.

    Raises:
        ValueError: the file is missing, damaged, not a checkpoint or has another digest.
    """
    try:
        if digest and atomic.digest(path) != digest:
            raise Unreadable("it is not the file that this training wrote")
        verify(path)
        with opened(path) as file:
            _check_crc(file)
            return torch.load(file, map_location="cpu", weights_only=True)
    except Unreadable as error:
        raise ValueError(f"{path} cannot be used ({error}); {REMEDY}") from None
    # For a damaged file zipfile and torch may raise any exception; only disk errors and lack of memory are re-raised.
    except Exception as error:
        is_disk_error = isinstance(error, OSError) and error.errno in (errno.EIO, errno.ESTALE)
        if is_disk_error or is_out_of_memory(error):
            raise
        reason = f"it is damaged or not a checkpoint: {_shorten(error)}"
        raise ValueError(f"{path} cannot be used ({reason}); {REMEDY}") from None


def _check_crc(file: BinaryIO) -> None:
    """Raise Unreadable unless every part of a checkpoint, a zip file, has its CRC-32."""
    with zipfile.ZipFile(file) as archive:
        damaged_part = archive.testzip()
        if damaged_part:
            raise Unreadable(f"its part {damaged_part} is damaged")
    file.seek(0)


def read_weights(path: Path, digest: str | None = None) -> dict[str, Tensor]:
    """Read the weights of a best.ckpt.

    Args:
        path: path of the file.
        digest: sha256 that the file must have; None for any.

    Raises:
        ValueError: the file cannot be read, has another digest or holds anything else.
    """
    state_dict = read(path, digest)
    has_weights = isinstance(state_dict, dict) and all(_is_number_tensor(value) for value in state_dict.values())
    if not has_weights:
        raise ValueError(f"{path} does not hold weights by their names, without NaN; {REMEDY}")
    return state_dict


def _is_number_tensor(value: Any) -> bool:
    """Whether a value is a tensor without NaN. A buffer, such as a causal mask, may hold infinities."""
    return isinstance(value, Tensor) and not bool(value.isnan().any())


def read_state(path: Path, fingerprint: str | None = None) -> dict | None:
    """Read the state of a training from a last.ckpt.

    Args:
        path: path of the file.
        fingerprint: fingerprint that the run must have; None for any.

    Returns:
        Lightning's checkpoint; None if there is no file.

    Raises:
        ValueError: the file is not the state of a run of this version, or belongs to another run.
    """
    if not path.exists():
        return None
    checkpoint = read(path)
    try:
        form = checkpoint["callbacks"][CALLBACK]["form"]
    except (KeyError, TypeError):
        raise ValueError(f"{path} is not the state of a run of this version; {REMEDY}") from None
    if form != FORM:
        raise ValueError(f"{path} has format {form} instead of {FORM}: another version wrote it; {REMEDY}")
    if fingerprint is not None and checkpoint["callbacks"][CALLBACK]["fingerprint"] != fingerprint:
        raise ValueError(f"{path} was written by another run; {REMEDY}")
    return checkpoint


def load_weights(model: nn.Module, path: Path) -> None:
    """Load the weights of a best.ckpt into a model. Raises ValueError if they cannot be read or do not fit."""
    state_dict = read_weights(path)
    try:
        model.load_state_dict(state_dict)
    except RuntimeError as error:
        raise ValueError(f"{path} does not hold the weights of this model ({_shorten(error)}); {REMEDY}") from None


def _shorten(error: Exception) -> str:
    """The message of an exception on one line, or its class if it has none."""
    message = " ".join(str(error).split())
    return (message or type(error).__name__)[:_MESSAGE_LENGTH]


def copy(path: Path, folder: Path, *, remedy: str) -> None:
    """Copy a file of a finished run to another folder, if the record of the run lists it.

    Args:
        path: path of the file.
        folder: folder of the copy.
        remedy: remedy, for the message.

    Raises:
        ValueError: the file is missing, cannot be read, or is not the one that the record lists.
    """
    if not recorded_digest(path):
        return
    try:
        atomic.copy(path, folder / path.name, lambda part: verify(path, part))
    except Unreadable as error:
        raise ValueError(f"{path} cannot be used ({error}); {remedy}") from None


def serialise(tree: Any) -> memoryview:
    """Return the bytes of ``torch.save``, whose own writer raises no OSError on a full disk."""
    buffer = io.BytesIO()
    torch.save(tree, buffer)
    return buffer.getbuffer()


def disk_bytes(params: int) -> int:
    """The disk space of a seed in bytes: weights, two moments of AdamW and the best weights, all in float32."""
    return 16 * params


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """Read the evaluations of a run.

    Args:
        folder: run directory with a metrics.csv.

    Returns:
        One dict per evaluation: ``step`` (int) and the other columns (float).

    Raises:
        ValueError: the file is not a table of evaluations.
    """
    path = folder / METRICS
    try:
        verify(path)
        lines = io.StringIO(content(path).decode(), newline="")
        table = csv.DictReader(lines, strict=True)
        return [_parse_line(line) for line in table]
    except (ValueError, KeyError, TypeError, OverflowError, csv.Error) as error:
        reason = str(error) if isinstance(error, Unreadable) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is not a table of evaluations ({reason})") from None


def _parse_line(line: dict[str, str]) -> dict[str, float]:
    values = {name: float(cell) for name, cell in line.items()}
    return values | {"step": int(values["step"])}


def format_metrics(evaluations: list[dict[str, float]]) -> str:
    """Format evaluations as metrics.csv, with the columns of the last one."""
    table = pd.DataFrame(evaluations, columns=list(evaluations[-1]))
    return table.to_csv(index=False, lineterminator="\n")


def check_shapes(path: Path, weights: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]) -> None:
    """Raise ValueError unless weights have the names and shapes of a model's."""
    weight_shapes = {name: value.shape for name, value in weights.items()}
    if weight_shapes != shapes:
        raise ValueError(f"{path} does not hold the weights of this model; {REMEDY}")
