"""NumPy arrays of a task: {train,val,test}.npz with tokens, offsets and labels.

Sequence i of n * T (T texts per example) is ``tokens[offsets[i]:offsets[i + 1]]``; tokens are stored ids.
"""

import itertools
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from lra.console import first_line
from lra.data.progress import Progress

from .layout import SPLITS, Export, Reader, SequenceExample, as_label, check_length

FIELDS = ("tokens", "offsets", "labels")
REPORT_INTERVAL = 1000  # examples between two reports of the progress


class ArrayReader(Reader):
    """Reader of one task's arrays, in constant memory.

    Args:
        path: folder of the files.
        num_texts: texts per example.
        num_classes: number of labels.
        length: pixels of an image; None for texts.

    Raises:
        ValueError: a file is missing.
    """

    def __init__(self, path: Path, *, num_texts: int, num_classes: int, length: int | None = None):
        super().__init__(path, find_files(path))
        self.num_texts = num_texts
        self.num_classes = num_classes
        self.length = length

    def _examples(self, split: str, progress: Progress) -> Iterator[SequenceExample]:
        path = self.files[split]
        try:
            yield from self._sequences(path, progress)
        except (OSError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{path} is damaged or not an .npz file: {first_line(error)}") from None

    def _sequences(self, path: Path, progress: Progress) -> Iterator[SequenceExample]:
        # np.load takes any other file for a pickle or for a single array.
        if not zipfile.is_zipfile(path):
            raise zipfile.BadZipFile("File is not a zip file")
        # Offsets and labels are small; the tokens are streamed below. Without pickles, nothing is executed.
        with np.load(path, allow_pickle=False) as arrays:
            missing = [name for name in FIELDS if name not in arrays.files]
            if missing:
                raise ValueError(f"{path} has no {', '.join(missing)}: it needs the arrays {', '.join(FIELDS)}")
            try:
                # NumPy returns a member that is not an array as bytes. They have no axis, so they are rejected below.
                offsets = np.asarray(arrays["offsets"])
                labels = np.asarray(arrays["labels"])
            except ValueError as error:
                # An array of Python objects, or a damaged header.
                raise ValueError(f"{path}: {first_line(error)}") from None
        if labels.ndim != 1:
            raise ValueError(f"{path}: labels must have the shape (n,), not {labels.shape}")
        with zipfile.ZipFile(path) as archive, archive.open("tokens.npy") as file:
            num_tokens = _read_header(file, path)
            num_sequences = len(labels) * self.num_texts
            check_offsets(offsets, num_sequences, num_tokens, path)
            # Sequences follow each other in the file: one at a time is in memory.
            for number, label in enumerate(labels, start=1):
                where = f"{path}, example {number}"
                first = (number - 1) * self.num_texts
                last = first + self.num_texts
                bounds = offsets[first : last + 1].tolist()
                texts = []
                for start, end in itertools.pairwise(bounds):
                    data = file.read(end - start)
                    tokens = np.frombuffer(data, np.uint8)
                    check_length(tokens, self.length, where)
                    texts.append(tokens)
                value = as_label(label, self.num_classes, where)
                yield tuple(texts), value
                if number % REPORT_INTERVAL == 0:
                    progress(path.name, number, len(labels))


def find_files(folder: Path) -> dict[str, Path]:
    """Find the file of each split. Raises ValueError if one is missing."""
    files = {split: folder / f"{split}.npz" for split in SPLITS}
    missing = [path.name for path in files.values() if not path.is_file()]
    if missing:
        raise ValueError(f"{folder} lacks {', '.join(missing)}")
    return files


def _read_header(file: IO[bytes], path: Path) -> int:
    """Read the header of the tokens and return their number. Raises ValueError unless they are (total,) uint8."""
    try:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    except ValueError as error:
        raise ValueError(f"{path}: tokens are not an array ({first_line(error)})") from None
    if dtype != np.uint8 or len(shape) != 1:
        raise ValueError(f"{path}: tokens must be (total,) uint8, got {shape} {dtype}")
    return shape[0]


def check_offsets(offsets: np.ndarray, num_sequences: int, num_tokens: int, path: Path) -> None:
    """Raise ValueError unless the offsets divide the tokens into so many sequences."""
    has_shape = offsets.shape == (num_sequences + 1,)
    is_valid = has_shape and offsets.dtype == np.int64
    # Offsets ascend from the first token to the last one.
    if is_valid:
        covers_tokens = offsets[0] == 0 and offsets[-1] == num_tokens
        is_ascending = (np.diff(offsets) >= 0).all()
        is_valid = bool(covers_tokens and is_ascending)
    if not is_valid:
        raise ValueError(f"{path}: the offsets do not divide {num_tokens} tokens into {num_sequences} sequences")


def write_npz(task: Export, folder: Path, progress: Progress) -> str:
    """Write ``{train,val,test}.npz`` in constant memory, and return their description."""
    for name, split in task.splits.items():
        lengths = split.lengths.reshape(-1).numpy()
        ends = np.cumsum(lengths)
        offsets = np.concatenate([[0], ends]).astype(np.int64)
        # Offsets and labels fit into memory.
        arrays = {"offsets": offsets, "labels": split.labels.numpy()}
        # One example shows the type and the features of the tokens.
        first, _ = next(task.examples(name, lambda *_: None))
        path = folder / f"{name}.npz"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for key, array in arrays.items():
                with archive.open(f"{key}.npy", "w") as file:
                    np.lib.format.write_array(file, array)
            # The tokens follow their header one sequence after the other.
            with archive.open("tokens.npy", "w", force_zip64=True) as file:
                num_tokens = int(offsets[-1])
                sequence = first[0]
                shape = (num_tokens, *sequence.shape[1:])
                header = {"descr": sequence.dtype.str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                for texts, _ in task.examples(name, progress):
                    for tokens in texts:
                        file.write(np.ascontiguousarray(tokens).tobytes())
    description = (
        "Arrays `tokens` (all sequences one after the other), `offsets` and `labels`. Sequence i is "
        f"`tokens[offsets[i]:offsets[i + 1]]`, and the number of sequences per example is {task.source.towers}."
    )
    if task.kind == "series":
        return f"{description} Tokens are real features; the model reads the first {task.limit} of a sequence."
    return (
        f"{description} Tokens are stored ids; the model reads the first {task.limit} of a sequence and adds "
        f"{task.shift} to each."
    )
