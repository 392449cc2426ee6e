"""Layouts of a task on the disk: the interface of their readers, and the data that their writers get.

Both have the examples of a task by split, with stored ids: the ids as the store keeps them, to which ``task.shift`` is
added when the model reads them.
"""

import hashlib
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image

from lra.console import log
from lra.data.progress import Progress, ReadMeter
from lra.data.source import Source
from lra.data.split import ExampleChunk

from ..archive import file_identity, hash_states
from ..examples import chunks, first_of

# How the tokens of a task are stored: bytes of a text, grey levels of a square image, ids of an expression.
Kind = Literal["bytes", "pixels", "expression"]
SequenceExample = tuple[tuple[np.ndarray, ...], int]  # tokens (length,) of each text, label
SPLITS = ("train", "val", "test")
# Examples that are read or written at a time.
CHUNK = 512


class Reader(ABC):
    """A copy of a task on the disk.

    Args:
        path: file or folder of the copy.
        files: file of each split.
    """

    # Options that decide what is read, as text.
    options: str = ""

    def __init__(self, path: Path, files: Mapping[str, Path]):
        self.path = path
        self.files = files

    @property
    def identity(self) -> dict[str, Any]:
        """Sizes and checksums of the files, which go into the provenance of the data."""
        identity = {}
        for path in self.paths:
            name = str(path.relative_to(self.path))
            identity[name] = file_identity(path)
        return identity

    @property
    def paths(self) -> list[Path]:
        """All files that are read."""
        return list(self.files.values())

    def stamp(self) -> str:
        """Hash the names, sizes and times of the files, and the options that choose what is read."""
        # Other options read something else from the same files.
        state = hash_states((str(path.relative_to(self.path)), path.stat()) for path in self.paths)
        return hashlib.sha256(f"{self.options} {state}".encode()).hexdigest()

    @property
    def has_val(self) -> bool:
        """Whether the copy has a separate validation set."""
        return "val" in self.files

    def fetch(self, root: Path, progress: Progress) -> None:  # noqa: B027 files are read in place
        """Do nothing, since the files are read in place."""

    def parts_of(self, split: str) -> list[Path]:
        """The files of a split."""
        return [self.files[split]]

    def examples(self, split: str, progress: Progress) -> Iterator[SequenceExample]:
        """Read the examples of a split in the order of the file, and log the rate if it takes long.

        Args:
            split: ``train``, ``val`` or ``test``.
            progress: reports what is read, in the unit of the format.

        Raises:
            ValueError: the file is damaged or does not belong to the task.
        """
        # A folder may hold the task in several formats, of which one is read.
        log(f"reading {self.files.get(split, self.path)}")
        with ReadMeter(f"{self.path}: {split}") as meter:
            yield from self._examples(split, progress)
            # The files are read to their end by now.
            for path in self.parts_of(split):
                meter.add(path.stat().st_size)

    @abstractmethod
    def _examples(self, split: str, progress: Progress) -> Iterator[SequenceExample]:
        """Read the examples of a split, see ``examples``."""

    def chunks(
        self,
        progress: Progress,
        sizes: Mapping[str, int | None] | None = None,
        select: Callable[[Iterator[SequenceExample], int, str], Iterator[SequenceExample]] | None = None,
        convert: Callable[[Iterator[SequenceExample], str], Iterator[SequenceExample]] | None = None,
    ) -> dict[str, Iterator[ExampleChunk]]:
        """Read all splits.

        Args:
            progress: reports the examples read.
            sizes: number of examples of each split; None for all of them.
            select: called with (examples, size, file name) if a size is given; returns the chosen examples.
            convert: called with (examples of a split, name for messages); returns the converted ones.
        """
        splits = {}
        for split in SPLITS:
            # None reads the whole split.
            size = None if sizes is None else sizes[split]
            examples = self.examples(split, progress)
            if convert is not None:
                examples = convert(examples, f"{self.path}: {split}")
            if size is not None and select is not None:
                # A split without a file is rejected when it is read, with the names that are looked for.
                path = self.files.get(split, self.path)
                examples = select(examples, size, str(path))
            splits[split] = chunks(examples, split, size, progress)
        return splits


def drawn_examples(examples: Iterator[SequenceExample], size: int, name: str) -> Iterator[SequenceExample]:
    """Draw ``size`` examples with a fixed seed, in their order. Raises ValueError if there are fewer.

    Not the first ones: copies of IMDb, ours included, have all negative reviews before the positive ones.
    """
    every_example = list(examples)
    order = np.random.RandomState(0).permutation(len(every_example))
    for number in first_of(order, size, name):
        yield every_example[number]


def check_length(tokens: np.ndarray, length: int | None, where: str) -> None:
    """Raise ValueError if a sequence that must have a fixed length has another one."""
    if length is not None and len(tokens) != length:
        raise ValueError(f"{where}: {len(tokens)} pixels instead of {length}, an image of another size")


def decode_image(data: bytes, *, allow_colours: bool = False) -> np.ndarray:
    """Decode an image to grey levels (height, width) uint8.

    Args:
        data: content of the file.
        allow_colours: whether an image with colours becomes planes R, G, B (3, height, width) instead.

    Raises:
        ValueError: the image cannot be decoded, or has more than 8 bits per value.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            # Pillow would clip grey levels above 255 instead of scaling them.
            if image.mode.startswith(("I", "F")):
                raise ValueError("an image with more than 8 bits per value")
            if image.mode in ("L", "1") or not allow_colours:
                return np.asarray(image.convert("L"))
            return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except (OSError, SyntaxError, Image.DecompressionBombError):
        raise ValueError("the image cannot be decoded") from None


def as_label(value: Any, num_classes: int, where: str) -> int:
    """Convert a label. Raises ValueError unless it is a whole number from 0 to ``num_classes - 1``."""
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    # Copies may have labels as real numbers; neither infinity nor NaN is in the range.
    if not is_number or not 0 <= value < num_classes or int(value) != value:
        raise ValueError(f"{where}: the label must be a whole number from 0 to {num_classes - 1}, got {value!r:.40}")
    return int(value)


@dataclass(frozen=True, kw_only=True)
class Export:
    """The data of a task.

    Args:
        source: data source.
        splits: opened splits.
        kind: ``display`` of the task: expression, bytes, pixels or series.
        limit: tokens that the task reads of a sequence.
        length: maximum sequence length of the model.
        shift: number added to stored ids.
    """

    source: Source
    splits: Mapping[str, Any]
    kind: str
    limit: int
    length: int
    shift: int

    @property
    def num_examples(self) -> int:
        return sum(len(split) for split in self.splits.values())

    def examples(self, name: str, progress: Progress) -> Iterator[tuple[list[np.ndarray], int | float]]:
        """Read the examples of a split in order.

        Args:
            name: name of the split.
            progress: reports the examples.

        Yields:
            Stored tokens (length,) or (length, F) of each text, and the label.
        """
        split = self.splits[name]
        for start in range(0, len(split), CHUNK):
            index = torch.arange(start, min(start + CHUNK, len(split)))
            # Padded to the longest sequence of the chunk, then cut.
            lengths = split.lengths[index]  # (n,T)
            tokens, _ = split.gather(index, int(lengths.max()))  # (n,T,width) or (n,T,width,F)
            labels = split.labels[index].tolist()
            for number, label in enumerate(labels):
                pairs = zip(tokens[number], lengths[number].tolist(), strict=True)
                yield [sequence[:length].numpy() for sequence, length in pairs], label
            progress(name, start + len(index), len(split))
