"""Examples on which trained models are compared: examples of a task, and labelled files."""

import tarfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..data.datamodule import Batch, TaskData

# File names by folder (the split), then by class.
Names = dict[str, dict[str, list[str]]]


def spread(data: TaskData, split: str, examples: int) -> np.ndarray:
    """Choose examples of a split at equidistant ranks by length; returns their indices, short ones first."""
    # Order the examples by length, the shortest first.
    lengths = data.sequence_lengths[split]
    order = lengths.argsort(stable=True).numpy()
    # Equidistant ranks, the first and the last included.
    count = min(examples, len(order))
    ranks = np.linspace(0, len(order) - 1, count).round()
    return order[ranks.astype(int)]


def gathered(data: TaskData, split: str, parts: Iterable[np.ndarray], device: str) -> list[Batch]:
    """Gather batches on a device, one for each array of indices."""
    batches = []
    for part in parts:
        batch = Batch._make(None if x is None else x.to(device) for x in data.gather(split, part))
        batches.append(batch)
    return batches


def batches(data: TaskData, examples: int, size: int, device: str) -> list[Batch]:
    """Gather the test examples of ``spread`` in batches of ``size``, short ones first."""
    indices = spread(data, "test", examples)
    parts = []
    for start in range(0, len(indices), size):
        parts.append(indices[start : start + size])
    return gathered(data, "test", parts, device)


def labelled(path: Path, split: str, n: int, seed: int, option: str | None = None) -> tuple[list[bytes], Tensor]:
    """Draw files of <split>/<class>/<file> from a tar file, the same number of each class.

    Only folders that test has too are classes: IMDb's train has a folder of texts without a label as well.

    Args:
        path: path of the tar file.
        split: folder in it.
        n: number of files, a multiple of the number of classes.
        seed: seed of the draw.
        option: name of the option with n, for the message; None: the split.

    Returns:
        Contents in the order of the archive, and labels (n,) that number the classes in alphabetical order.

    Raises:
        ValueError: the file is not a tar file, has fewer than two classes or too few examples, or the number of classes
            does not divide n.
    """
    try:
        with tarfile.open(path) as archive:
            names = _names_by_class(archive, split)
            _check_classes(names, path, split, n, option or split)
            # Draw the same number of names of each class.
            generator = np.random.default_rng(seed)
            num_per_class = n // len(names)
            labels: dict[str, int] = {}
            for label, (_, files) in enumerate(sorted(names.items())):
                sample = generator.choice(sorted(files), num_per_class, replace=False)
                labels |= dict.fromkeys(sample.tolist(), label)
            # Read the files in the order of the archive.
            contents = []
            numbers = []
            for member in archive:
                file = archive.extractfile(member) if member.name in labels else None
                if file is not None:
                    contents.append(file.read())
                    numbers.append(labels[member.name])
    except tarfile.TarError as error:
        raise ValueError(f"{path} cannot be read as a tar file: {error}") from None
    return contents, torch.tensor(numbers)


def _names_by_class(archive: tarfile.TarFile, split: str) -> dict[str, list[str]]:
    """List the files of a split by class, for the classes that test has too."""
    names: Names = {"test": {}, split: {}}
    for member in archive:
        parts = member.name.split("/")
        if not member.isfile() or len(parts) < 3:
            continue
        folder, kind, _ = parts[-3:]
        if folder in names:
            files = names[folder].setdefault(kind, [])
            files.append(member.name)
    classes = names["test"].keys()
    return {kind: files for kind, files in names[split].items() if kind in classes}


def _check_classes(names: dict[str, list[str]], path: Path, split: str, n: int, option: str) -> None:
    """Raise ValueError unless n files can be drawn evenly from two or more classes."""
    num_classes = len(names)
    smallest = min((len(files) for files in names.values()), default=0)
    is_even = num_classes >= 2 and n % num_classes == 0
    if not is_even or not 0 < n // num_classes <= smallest:
        raise ValueError(
            f"{path} has {len(names)} classes of {smallest} or more files in {split}/<class>/; "
            f"{option}={n} must be a multiple of the number of classes, with at most {smallest} files of each"
        )
