"""last.ckpt, from which a seed goes on, and best.ckpt, the weights of its best dev score, verified when read."""

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
    """Read a file of torch onto the CPU. Raises ValueError if it is missing, damaged or no such file.

    A file without an entry in the list of checksums, from before there was one, is checked by the CRC-32 that torch
    puts beside each tensor and does not look at.
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
    except Exception as error:  # of foreign bytes zipfile and torch raise whatever comes
        reason = f"it is damaged or no checkpoint: {_brief(error)}"
    raise ValueError(f"{path} cannot be used ({reason}); {_AGAIN}")


def _check_crc(file: BinaryIO) -> None:
    with zipfile.ZipFile(file) as parts:
        for part in parts.infolist():
            if part.compress_type != zipfile.ZIP_STORED or part.external_attr & 16:  # of a folder torch reads nothing
                raise Unreadable(f"torch did not write its part {part.filename!r}")
        if name := parts.testzip():
            raise Unreadable(f"its part {name} is damaged")
    file.seek(0)


def load_weights(model: nn.Module, path: Path) -> None:
    """Put the weights of a best.ckpt or best.safetensors into a model. Raises ValueError if they cannot be read or do not fit."""
    weights = read(path)
    try:
        model.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} does not hold the weights of this model ({_brief(error)}); {_AGAIN}") from None


def state(folder: Path) -> dict | None:
    """The contents of last.ckpt, None without one. Raises ValueError if it cannot be read."""
    path = folder / LAST
    if not path.exists() and not path.is_symlink():
        return None
    found = read(path)
    if not isinstance(found, dict) or any(not isinstance(found.get(name), kind) for name, kind in _PARTS.items()):
        raise ValueError(f"{path} is not the state of a run; {_AGAIN}")
    return found


def first_step(folder: Path, model: nn.Module, fingerprints: tuple[str, ...]) -> int:
    """The step that a seed goes on from, 0 without last.ckpt.

    Args:
        folder: of the seed.
        model: whose weights both checkpoints must have.
        fingerprints: that the run may have written last.ckpt under.

    Raises:
        ValueError: the end would not be that of a seed without interruption, because last.ckpt or best.ckpt cannot be
            read or is of another run.
    """
    if (last := state(folder)) is None:
        return 0
    if last["callbacks"].get(CALLBACK, {}).get(OWNER, fingerprints[0]) not in fingerprints:
        raise ValueError(f"{folder / LAST} was written by another run; {_AGAIN}")
    own = {name: value.shape for name, value in model.state_dict().items()}
    inside = {name.removeprefix("model."): value for name, value in last["state_dict"].items()}
    for path, found in ((folder / LAST, inside), (folder / BEST, read(folder / BEST))):
        if not isinstance(found, dict) or own != {k: v.shape for k, v in found.items() if isinstance(v, Tensor)}:
            raise ValueError(f"{path} does not hold the weights of this model; {_AGAIN}")
    return last["global_step"]


def _brief(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:200]
