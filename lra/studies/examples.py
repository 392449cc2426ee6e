"""Examples on which trained models are compared: of a task, and labelled files."""

import tarfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..data.datamodule import Batch, TaskData


def spread(data: TaskData, split: str, examples: int) -> np.ndarray:
    """Choose examples of a split evenly over their lengths, short ones first; returns their indices."""
    order = data.sequence_lengths[split].argsort(stable=True).numpy()
    return order[np.linspace(0, len(order) - 1, min(examples, len(order))).round().astype(int)]


def gathered(data: TaskData, split: str, parts: Iterable[np.ndarray], device: str) -> list[Batch]:
    """Gather batches on a device, one for each array of indices."""
    batches = (data.gather(split, part) for part in parts)
    return [Batch(*(x if x is None else x.to(device) for x in batch)) for batch in batches]


def batches(data: TaskData, examples: int, size: int, device: str) -> list[Batch]:
    """Gather test examples that are spread evenly over their lengths, short ones first."""
    chosen = spread(data, "test", examples)
    return gathered(data, "test", (chosen[i : i + size] for i in range(0, len(chosen), size)), device)


def labelled(path: Path, split: str, n: int, seed: int) -> tuple[list[bytes], Tensor]:
    """Draw files of <split>/<class>/<file> from a tar file, the same number of each class.

    The classes are those of test: IMDb's train has a folder of texts without a label too.

    Args:
        path: path of the tar file.
        split: folder in it.
        n: files, a multiple of the number of classes.
        seed: seed of the draw.

    Returns:
        Contents, and labels (n,) that number the classes in alphabetical order.

    Raises:
        ValueError: the file is not a tar file or does not have enough examples.
    """
    try:
        with tarfile.open(path) as archive:
            found: dict[str, dict[str, list[str]]] = {"test": {}, split: {}}
            for member in archive:
                parts = member.name.split("/")
                if member.isfile() and len(parts) > 2 and parts[-3] in found:
                    found[parts[-3]].setdefault(parts[-2], []).append(member.name)
            names = {kind: same for kind, same in found[split].items() if kind in found["test"]}
            smallest = min((len(same) for same in names.values()), default=0)
            if len(names) < 2 or n % len(names) or not 0 < n // len(names) <= smallest:
                raise ValueError(
                    f"{path} has {len(names)} classes of {smallest} or more files in {split}/<class>/; "
                    f"{split}={n} must be a multiple of the one, and no more than that of each"
                )
            draw = np.random.default_rng(seed)
            chosen = {
                name: label
                for label, kind in enumerate(sorted(names))
                for name in draw.choice(sorted(names[kind]), n // len(names), replace=False).tolist()
            }
            labelled = [(archive.extractfile(m).read(), chosen[m.name]) for m in archive if m.name in chosen]
    except tarfile.TarError as error:
        raise ValueError(f"{path} cannot be read as a tar file: {error}") from None
    return [content for content, _ in labelled], torch.tensor([label for _, label in labelled])
