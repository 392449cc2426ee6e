"""The checkpoints of a seed, verified when read: last.ckpt to resume from, best.ckpt with the best dev score."""

import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import safetensors.torch
import torch
from torch import Tensor, nn

from ..disk import checksums
from ..disk.atomic import Unreadable, opened

LAST, BEST = "last.ckpt", "best.ckpt"
SAFE = "best.safetensors"  # of a published run
OWNER = "fingerprint"  # of the run that wrote last.ckpt, in the state of the callback of this name
CALLBACK = "Checkpoints"
_PARTS = {
    "callbacks": dict,
    "global_step": int,
    "loops": dict,
    "lr_schedulers": list,
    "optimizer_states": list,
    "state_dict": dict,
}
_AGAIN = "delete its folder to run that seed again"


def read(path: Path) -> Any:
    """Read a checkpoint onto the CPU.

    A file without an entry in the list of checksums is older than the list; it is checked by the CRC-32 that torch
    stores beside each tensor and does not verify.

    Raises:
        ValueError: the file is missing, damaged or no checkpoint.
    """
    try:
        listed = checksums.check(path)
        with opened(path) as file:
            if not listed and path.suffix == ".ckpt":
                _check_crc(file)
            if path.suffix == ".safetensors":
                return safetensors.torch.load(file.read())
            return torch.load(file, map_location="cpu", weights_only=True)
    except checksums.Damaged:
        raise
    except Unreadable as error:
        reason = str(error)
    except Exception as error:  # zipfile and torch raise exceptions of any class for damaged files
        reason = f"it is damaged or no checkpoint: {_brief(error)}"
    raise ValueError(f"{path} cannot be used ({reason}); {_AGAIN}")


def _check_crc(file: BinaryIO) -> None:
    with zipfile.ZipFile(file) as parts:
        for part in parts.infolist():
            if part.compress_type != zipfile.ZIP_STORED or part.external_attr & 16:  # torch ignores folders
                raise Unreadable(f"torch did not write its part {part.filename!r}")
        if name := parts.testzip():
            raise Unreadable(f"its part {name} is damaged")
    file.seek(0)


def weights(path: Path) -> dict[str, Tensor]:
    """Read the weights of a best.ckpt or best.safetensors. Raises ValueError if it holds anything else."""
    held = read(path)
    if not _are_weights(held):
        raise ValueError(f"{path} does not hold weights by their names; {_AGAIN}")
    return held


def _are_weights(held: Any) -> bool:
    """Whether an object is a dict of tensors with values, by name."""
    whole = lambda value: isinstance(value, Tensor) and value.device.type == "cpu" and value.layout is torch.strided
    return isinstance(held, dict) and all(isinstance(name, str) and whole(value) for name, value in held.items())


def load_weights(model: nn.Module, path: Path) -> None:
    """Load the weights of a best.ckpt or best.safetensors into a model.

    Raises:
        ValueError: they cannot be read or do not fit.
    """
    held = weights(path)
    try:
        model.load_state_dict(held)
    except RuntimeError as error:
        raise ValueError(f"{path} does not hold the weights of this model ({_brief(error)}); {_AGAIN}") from None


def state(folder: Path) -> dict | None:
    """Read last.ckpt; None without one. Raises ValueError if it cannot be read."""
    path = folder / LAST
    if not path.exists() and not path.is_symlink():
        return None
    contents = read(path)
    there = isinstance(contents, dict) and all(isinstance(contents.get(name), kind) for name, kind in _PARTS.items())
    if not there or not _are_weights(contents["state_dict"]):
        raise ValueError(f"{path} is not the state of a run; {_AGAIN}")
    return contents


def first_step(folder: Path, model: nn.Module, fingerprints: tuple[str, ...]) -> int:
    """The step from which a seed resumes, 0 without last.ckpt.

    Args:
        folder: of the seed.
        model: both checkpoints must have its weights' names and shapes.
        fingerprints: of the run; last.ckpt must carry one of them.

    Raises:
        ValueError: last.ckpt or best.ckpt cannot be read or is of another run, so the result would not be that of an
            uninterrupted seed.
    """
    if (last := state(folder)) is None:
        return 0
    if last["callbacks"].get(CALLBACK, {}).get(OWNER, fingerprints[0]) not in fingerprints:
        raise ValueError(f"{folder / LAST} was written by another run; {_AGAIN}")
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    last_weights = {name.removeprefix("model."): value for name, value in last["state_dict"].items()}
    for path, held in ((folder / LAST, last_weights), (folder / BEST, weights(folder / BEST))):
        if shapes != {name: value.shape for name, value in held.items()}:
            raise ValueError(f"{path} does not hold the weights of this model; {_AGAIN}")
    return last["global_step"]


def _brief(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:200]


def disk_bytes(params: int) -> int:
    """The size of a seed on the disk in bytes: weights, two moments of AdamW and the best weights, all in 32 bits."""
    return 16 * params
