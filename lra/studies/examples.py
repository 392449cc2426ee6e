"""Examples on which trained models are compared: examples of a task, and labelled files."""

import lzma
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..data.datamodule import Batch, TaskData

# Bytes that are read at a time.
READ_BYTES = 2**20


def select_by_length(data: TaskData, split: str, examples: int) -> np.ndarray:
    """Select examples of a split at equal distances in the order of their lengths.

    Args:
        data: data that was set up.
        split: name of the split.
        examples: number of examples; all of them if the split has fewer.

    Returns:
        Indices of the examples, from the shortest to the longest.
    """
    lengths = data.longest[split]
    order = lengths.argsort(stable=True).numpy()
    # Equidistant ranks, the first and the last included.
    count = min(examples, len(order))
    ranks = np.linspace(0, len(order) - 1, count).round()
    return order[ranks.astype(int)]


def gather_batches(data: TaskData, split: str, parts: Iterable[np.ndarray], device: str) -> list[Batch]:
    """Gather batches on a device, one for each array of indices."""
    batches = []
    for indices in parts:
        batch = data.gather(split, indices)
        moved = Batch._make(None if x is None else x.to(device) for x in batch)
        batches.append(moved)
    return batches


def gather_test_batches(data: TaskData, examples: int, size: int, device: str) -> list[Batch]:
    """Gather the test examples of ``select_by_length`` in batches of ``size``, short ones first."""
    indices = select_by_length(data, "test", examples)
    parts = []
    for start in range(0, len(indices), size):
        parts.append(indices[start : start + size])
    return gather_batches(data, "test", parts, device)


def draw_files(path: Path, split: str, n: int, seed: int, option: str | None = None) -> tuple[list[bytes], Tensor]:
    """Draw files of <split>/<class>/<file> from a tar file, the same number of each class.

    A folder is a class only if test has it too: IMDb's train/unsup has texts without a label.

    Args:
        path: path of the tar file.
        split: folder in it.
        n: number of files, a multiple of the number of classes.
        seed: seed of the draw.
        option: name of the option that sets n, for the message; None: the split, such as train=400.

    Returns:
        Contents in the order of the archive, and labels (n,) that number the classes in alphabetical order.

    Raises:
        ValueError: the file is not a tar file or is truncated, has fewer than two classes or too few files, or n is no
            multiple of the number of classes.
    """
    try:
        with tarfile.open(path) as archive:
            names = _names_by_class(archive, split)
            _read_to_end(archive)
            _check_classes(names, path, split, n, option or split)
            # Draw the same number of names of each class.
            generator = np.random.default_rng(seed)
            num_per_class = n // len(names)
            label_of: dict[str, int] = {}
            for label, (_, files) in enumerate(sorted(names.items())):
                sample = generator.choice(sorted(files), num_per_class, replace=False)
                label_of |= dict.fromkeys(sample.tolist(), label)
            # Read the files in the order of the archive.
            contents = []
            labels = []
            for member in archive:
                file = archive.extractfile(member) if member.name in label_of else None
                if file is not None:
                    contents.append(file.read())
                    labels.append(label_of[member.name])
    # gzip and lzma raise EOFError if an archive is truncated, zlib and lzma further errors if it is damaged.
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} cannot be read as a tar file: {reason}") from None
    return contents, torch.tensor(labels)


def _names_by_class(archive: tarfile.TarFile, split: str) -> dict[str, list[str]]:
    """List the files of a split by class, for the classes that test has too."""
    # File names by split, then by class.
    names: dict[str, dict[str, list[str]]] = {"test": {}, split: {}}
    for member in archive:
        parts = member.name.split("/")
        if not member.isfile() or len(parts) < 3:
            continue
        # The last three parts of a path are <split>/<class>/<file>; there may be folders above them. Hidden files are
        # not examples: macOS adds .DS_Store and, for each file, ._<file>.
        folder, label, file = parts[-3:]
        if folder in names and not file.startswith("."):
            files = names[folder].setdefault(label, [])
            files.append(member.name)
    test_classes = names["test"].keys()
    # Labels number the classes, so both splits need the same ones.
    missing = sorted(test_classes - names[split].keys())
    if missing and names[split]:
        raise ValueError(f"{split}/ lacks classes that test/ has: {', '.join(missing)}; remove them from test/")
    return {label: files for label, files in names[split].items() if label in test_classes}


def _read_to_end(archive: tarfile.TarFile) -> None:
    """Read what follows the last member, so that the checksum of the compression is compared."""
    assert archive.fileobj is not None
    while archive.fileobj.read(READ_BYTES):
        pass


def _check_classes(names: dict[str, list[str]], path: Path, split: str, n: int, option: str) -> None:
    """Raise ValueError unless n files can be drawn evenly from two or more classes."""
    num_classes = len(names)
    smallest = min((len(files) for files in names.values()), default=0)
    is_multiple = num_classes >= 2 and n % num_classes == 0
    if not is_multiple or not 0 < n // num_classes <= smallest:
        raise ValueError(
            f"{path} has {num_classes} classes of {smallest} or more files in {split}/<class>/; "
            f"{option}={n} must be a multiple of the number of classes, with at most {smallest} files of each"
        )
