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

from lra.data.progress import Progress

from .reader import SPLITS, Reader, SequenceExample, as_label, check_length

FIELDS = ("tokens", "offsets", "labels")
REPORTED = 1000  # examples between two reports of the progress


class ArrayReader(Reader):
    """Reader of one task's arrays, in constant memory.

    Args:
        path: folder of the files.
        num_texts: texts per example.
        num_classes: number of labels.
        length: pixels of an image; None for texts.
    """

    def __init__(self, path: Path, *, num_texts: int, num_classes: int, length: int | None = None):
        super().__init__(path, find_files(path))
        self.num_texts = num_texts
        self.num_classes = num_classes
        self.length = length

    def examples(self, split: str, progress: Progress) -> Iterator[SequenceExample]:
        path = self.files[split]
        try:
            yield from self._examples(path, progress)
        except KeyError as error:
            raise ValueError(f"{path} has no array {error}: it needs {', '.join(FIELDS)}") from None
        except (OSError, zipfile.BadZipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is damaged or not an .npz file: {str(error).splitlines()[0]}") from None

    def _examples(self, path: Path, progress: Progress) -> Iterator[SequenceExample]:
        # Without pickles, so that nothing is executed.
        # Offsets and labels are small; the tokens are streamed below.
        with np.load(path, allow_pickle=False) as arrays:
            offsets = arrays["offsets"]
            labels = arrays["labels"]
        with zipfile.ZipFile(path) as archive, archive.open("tokens.npy") as file:
            total = _read_header(file, path)
            check_offsets(offsets, len(labels) * self.num_texts, total, path)
            # Sequences follow each other in the file, so that one after the other is in memory.
            for number, label in enumerate(labels):
                where = f"{path}, example {number + 1}"
                bounds = offsets[number * self.num_texts :][: self.num_texts + 1].tolist()
                texts = []
                for start, end in itertools.pairwise(bounds):
                    tokens = np.frombuffer(file.read(end - start), np.uint8)
                    check_length(tokens, self.length, where)
                    texts.append(tokens)
                yield tuple(texts), as_label(label, self.num_classes, where)
                if number % REPORTED == REPORTED - 1:
                    progress(path.name, number + 1, len(labels))


def find_files(folder: Path) -> dict[str, Path]:
    """Find the file of each split. Raises ValueError if one is missing."""
    files = {split: folder / f"{split}.npz" for split in SPLITS}
    missing = [path.name for path in files.values() if not path.is_file()]
    if missing:
        raise ValueError(f"{folder} lacks {', '.join(missing)}")
    return files


def _read_header(file: IO[bytes], path: Path) -> int:
    """Read the header of the tokens and return their number. Raises ValueError unless they are (total,) uint8."""
    np.lib.format.read_magic(file)
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype != np.uint8 or len(shape) != 1:
        raise ValueError(f"{path}: tokens must be (total,) uint8, got {shape} {dtype}")
    return shape[0]


def check_offsets(offsets: np.ndarray, num_sequences: int, num_tokens: int, path: Path) -> None:
    """Raise ValueError unless the offsets divide the tokens into so many sequences."""
    is_valid = offsets.shape == (num_sequences + 1,) and offsets.dtype == np.int64
    if not is_valid or offsets[0] != 0 or offsets[-1] != num_tokens or (np.diff(offsets) < 0).any():
        raise ValueError(f"{path}: the offsets do not divide {num_tokens} tokens into {num_sequences} sequences")
