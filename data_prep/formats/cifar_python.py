"""The Python version of CIFAR-10, as torchvision keeps it: cifar-10-python.tar.gz or its folder cifar-10-batches-py.

A batch is a pickle of a dictionary with ``data`` (n, 3072) uint8, planes R, G, B row by row, and a list ``labels``.
It is read by ``safe_pickle``, which executes nothing.
"""

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lra.data.progress import Progress, ReadMeter

from ..archive import fingerprint, members, reading
from . import safe_pickle

FOLDER = "cifar-10-batches-py"
BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
# Values per image: three planes of 32 x 32.
NUM_VALUES = 3072


class CifarPython:
    """The batches of CIFAR-10 in a folder or in the archive.

    Args:
        path: the folder of the batches, or the archive.

    Raises:
        ValueError: the folder lacks a batch.
    """

    def __init__(self, path: Path):
        self.path = path
        missing = [name for name in BATCHES if not (path / name).is_file()]
        if missing and not path.is_file():
            raise ValueError(f"{path} is not the Python version of CIFAR-10: it lacks {', '.join(missing)}")

    @property
    def identity(self) -> dict[str, Any]:
        """Size and checksum of the archive, or of every batch."""
        if self.path.is_file():
            return fingerprint(self.path)
        return {name: fingerprint(self.path / name) for name in BATCHES}

    def batches(self, progress: Progress) -> Iterator[tuple[str, bytes, str]]:
        """Read the batches.

        Yields:
            Name of the batch, its records in the layout of the binary version (a byte of the label, then the planes),
            and name of the file for messages.

        Raises:
            ValueError: a batch is damaged, or holds anything but images and labels.
        """
        # A member of the archive, in the order of the archive.
        if self.path.is_file():
            names = {f"{FOLDER}/{name}": name for name in BATCHES}
            for name, file in members(self.path, names.get, progress):
                where = f"{self.path}: {name}"
                with reading(self.path):
                    records = _records(file, where)
                yield names[name], records, where
            return
        # A file of the folder.
        with ReadMeter(str(self.path)) as meter:
            for number, name in enumerate(BATCHES, start=1):
                path = self.path / name
                with open(path, "rb") as file:
                    records = _records(file, str(path))
                meter.add(len(records))
                yield name, records, str(path)
                progress("batches", number, len(BATCHES))


def find(path: Path) -> Path | None:
    """Find the archive, or the folder of the batches, which is the path or below it; None if there is none."""
    if path.is_file():
        return path if _is_archive(path) else None
    for folder in (path, path / FOLDER):
        if any((folder / name).is_file() for name in BATCHES):
            return folder
    return None


def _is_archive(path: Path) -> bool:
    """Whether the first member of a tar archive belongs to the Python version."""
    try:
        with tarfile.open(path) as archive:
            first = archive.next()
    except (tarfile.TarError, OSError, EOFError):
        return False
    return first is not None and first.name.removeprefix("./").split("/")[0] == FOLDER


def _records(file: BinaryIO, where: str) -> bytes:
    try:
        batch = safe_pickle.load(file)
    except safe_pickle.UnsafePickle as error:
        raise ValueError(f"{where} is not a batch of CIFAR-10: {error}; nothing in it was executed") from None
    if not isinstance(batch, dict):
        raise ValueError(f"{where} is not a batch of CIFAR-10: not a dictionary")
    # Copies that Python 3 wrote again have keys of bytes.
    fields = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
    images = fields.get("data")
    is_array = isinstance(images, np.ndarray)
    if not is_array or images.dtype != np.uint8 or images.shape[1:] != (NUM_VALUES,):
        raise ValueError(f"{where} is not a batch of CIFAR-10: its data are not (n, {NUM_VALUES}) uint8")
    # Labels must be numbers of the ten classes, one per image.
    labels = np.asarray(fields.get("labels", ()))
    is_valid = labels.shape == images.shape[:1] and labels.dtype.kind in "iu"
    if not is_valid or labels.min() < 0 or labels.max() > 9:
        raise ValueError(f"{where}: {len(images)} images need as many labels from 0 to 9")
    # Records of the binary version: the label, then the planes.
    records = np.column_stack([labels.astype(np.uint8), images])
    return records.tobytes()
