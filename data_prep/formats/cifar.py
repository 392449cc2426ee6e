"""CIFAR-10 in batches: the unpacked binary version, and the Python version, which torchvision keeps.

cifar-10-batches-bin has records of a label and the planes R, G, B row by row. cifar-10-python.tar.gz or its folder
cifar-10-batches-py has pickles of a dictionary with ``data`` (n, 3072) uint8, the planes, and a list ``labels``. They
are read by ``safe_pickle``, which executes nothing.
"""

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from lra.data.progress import Progress, ReadMeter

from ..archive import file_identity, hash_states, is_metadata, members, reading
from . import safe_pickle

NAMES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
PYTHON_FOLDER = "cifar-10-batches-py"
BINARY_FOLDER = "cifar-10-batches-bin"
# Values per image: three planes of 32 x 32.
NUM_VALUES = 3072


class CifarFolder:
    """The unpacked batches of CIFAR-10.

    Args:
        path: the folder of the batches.
        suffix: end of the names of the files: ``.bin`` for the binary version, nothing for the Python version.

    Raises:
        ValueError: the folder lacks a batch.
    """

    def __init__(self, path: Path, suffix: str):
        self.path = path
        self.suffix = suffix
        self.files = {name: path / f"{name}{suffix}" for name in NAMES}
        missing = [file.name for file in self.files.values() if not file.is_file()]
        if missing:
            raise ValueError(f"{path} is not a folder of CIFAR-10: it lacks {', '.join(missing)}")

    @property
    def identity(self) -> dict[str, Any]:
        """Size and checksum of every batch."""
        return {file.name: file_identity(file) for file in self.files.values()}

    def stamp(self) -> str:
        """Summarise the state of the files without reading them."""
        return hash_states((file.name, file.stat()) for file in self.files.values())

    def batches(self, progress: Progress) -> Iterator[tuple[str, bytes, str]]:
        """Read the batches.

        Yields:
            Name of the batch, its records in the layout of the binary version (a byte of the label, then the planes),
            and name of the file for messages.

        Raises:
            ValueError: a batch of the Python version is damaged, or holds anything but images and labels.
        """
        with ReadMeter(str(self.path)) as meter:
            for number, (name, path) in enumerate(self.files.items(), start=1):
                with open(path, "rb") as file:
                    # Records are read as they are, pickles are interpreted.
                    is_binary = self.suffix == ".bin"
                    records = file.read() if is_binary else _records(file, str(path))
                meter.add(len(records))
                yield name, records, str(path)
                progress("batches", number, len(self.files))


class CifarPythonArchive:
    """The batches in cifar-10-python.tar.gz.

    Args:
        path: the archive.
    """

    def __init__(self, path: Path):
        self.path = path

    @property
    def identity(self) -> dict[str, Any]:
        """Size and checksum of the archive."""
        return file_identity(self.path)

    def stamp(self) -> str:
        """Summarise the state of the archive without reading it."""
        return hash_states([("archive", self.path.stat())])

    def batches(self, progress: Progress) -> Iterator[tuple[str, bytes, str]]:
        """Read the batches as ``CifarFolder.batches`` does, but in the order of the archive.

        Raises:
            ValueError: the archive or a batch is damaged, or a batch is missing.
        """
        names = {f"{PYTHON_FOLDER}/{name}": name for name in NAMES}
        missing = list(names)
        for name, file in members(self.path, names.get, progress):
            where = f"{self.path}: {name}"
            with reading(self.path):
                records = _records(file, where)
            if name in missing:
                missing.remove(name)
            yield names[name], records, where
        if missing:
            raise ValueError(f"{self.path} is not an archive of CIFAR-10: it lacks {', '.join(missing)}")


Cifar = CifarFolder | CifarPythonArchive


def open_cifar(path: Path) -> Cifar | None:
    """Open the archive of the Python version, or the folder of the batches, which is the path or a subfolder of it.

    Returns:
        The reader; None if there is neither.

    Raises:
        ValueError: the folder lacks a batch.
    """
    if path.is_file():
        return CifarPythonArchive(path) if _is_python_archive(path) else None
    for folder in (path, path / PYTHON_FOLDER, path / BINARY_FOLDER):
        for suffix in ("", ".bin"):
            paths = [folder / f"{name}{suffix}" for name in NAMES]
            if any(path.is_file() for path in paths):
                return CifarFolder(folder, suffix)
    return None


def _is_python_archive(path: Path) -> bool:
    """Whether the first member of a tar archive, apart from metadata of macOS, belongs to the Python version."""
    try:
        with tarfile.open(path) as archive:
            first = archive.next()
            while first is not None and (first.name == "." or is_metadata(first.name)):
                first = archive.next()
    except (tarfile.TarError, OSError, EOFError):
        return False
    # An empty archive has no member.
    if first is None:
        return False
    top, _, _ = first.name.removeprefix("./").partition("/")
    return top == PYTHON_FOLDER


def _records(file: IO[bytes], where: str) -> bytes:
    try:
        batch = safe_pickle.load(file)
    except safe_pickle.UnsafePickle as error:
        raise ValueError(f"{where} is not a batch of CIFAR-10: {error}; nothing in it was executed") from None
    if not isinstance(batch, dict):
        raise ValueError(f"{where} is not a batch of CIFAR-10: not a dictionary")
    # Copies that Python 3 wrote again have keys of bytes.
    fields = {}
    for key, value in batch.items():
        name = key.decode() if isinstance(key, bytes) else key
        fields[name] = value
    # The planes of all images, one row per image, and their labels.
    if not {"data", "labels"} <= fields.keys():
        raise ValueError(f"{where} is not a batch of CIFAR-10: it lacks data or labels")
    images = np.asarray(fields["data"])
    try:
        labels = np.asarray(fields["labels"], np.uint8)
    except (OverflowError, TypeError, ValueError):
        raise ValueError(f"{where} is not a batch of CIFAR-10: its labels are not bytes") from None
    if images.dtype != np.uint8 or labels.ndim != 1 or images.size != len(labels) * NUM_VALUES:
        raise ValueError(f"{where} is not a batch of CIFAR-10: its data are not {NUM_VALUES} bytes for each label")
    images = images.reshape(-1, NUM_VALUES)
    # Records of the binary version: the label, then the planes.
    records = np.column_stack([labels, images])
    return records.tobytes()
