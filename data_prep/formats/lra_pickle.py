"""The pickles of Nystromformer and Skyformer: lists of dictionaries.

They are <task>.{train,dev,test}.pickle in Nystromformer and lra-<task>.{train,dev,test}.pickle in Skyformer.
A dictionary has ``input_ids_0``, for pairs also ``input_ids_1``, and ``label``. Their preparation scripts
(``LRA/datasets/*.py`` of mlpen/Nystromformer, ``src/preprocess/create_*.py`` of pkuzengqi/Skyformer) write

* Text and Retrieval: byte + 1, cut to 1,000 or 4,000 bytes and padded with zeros,
* Image and Pathfinder: grey levels without padding; the scripts repeat the training images of Image without end and
  write no file, so files of changed scripts may hold them several times,
* ListOps: ids in the order of a Python set, which differs from run to run; ``listops_ids`` recovers them. Skyformer's
  script, and Nystromformer's with the official code before March 2021, drop the closing brackets: these are rejected.

Their loaders pad nothing, so the writer cuts every sequence to the limit of the task and pads it with zeros to the
length of the task.
"""

import pickle
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lra.data.progress import Progress

from . import safe_pickle
from .layout import Export, Kind, Reader, SequenceExample, as_label, check_length
from .listops_ids import IdMap, recover_ids

PARTS = {"train": "train", "val": "dev", "test": "test"}
PREFIXES = ("lra-", "")
# The largest number of expressions from which the ids of ListOps are recovered.
SAMPLE = 2_000
# Protocol 3 has bytes, unlike earlier ones, and writes the numbers of memo entries into the file, unlike later ones.
# So records that were pickled one by one can be joined in one list: the numbers begin at 0 in each.
PROTOCOL = 3
# The opcodes PROTO 3 and EMPTY_LIST.
HEADER = b"\x80\x03]"
# Items that one APPENDS adds to the list, as in Python's pickle.
BATCH = 1000


class PickleReader(Reader):
    """Reader of one task's pickles, in constant memory.

    Args:
        path: folder of the files.
        stem: task as the files are named, such as ``listops`` or ``pathfinder32-curv_contour_length_14``.
        kind: kind of tokens.
        num_texts: texts per example.
        num_classes: number of labels.
        length: pixels of an image; None for texts.

    Raises:
        ValueError: a file is missing.
    """

    def __init__(
        self, path: Path, *, stem: str, kind: Kind, num_texts: int, num_classes: int, length: int | None = None
    ):
        super().__init__(path, find_files(path, stem))
        self.kind = kind
        self.num_texts = num_texts
        self.num_classes = num_classes
        self.length = length

    def _examples(self, split: str, progress: Progress) -> Iterator[SequenceExample]:
        path = self.files[split]
        for number, record in enumerate(_records(path, progress), start=1):
            where = f"{path}, example {number}"
            sequences, label = self._parse(record, where)
            texts = [self._convert(ids, label, where) for ids in sequences]
            yield tuple(texts), label

    def _parse(self, record: Any, where: str) -> tuple[list[np.ndarray], int]:
        """Check one dictionary. Raises ValueError that names the missing or wrong entry."""
        keys = [f"input_ids_{number}" for number in range(self.num_texts)]
        has_keys = isinstance(record, dict) and {*keys, "label"} <= record.keys()
        if not has_keys:
            raise ValueError(f"{where}: not a dictionary with {', '.join(keys)} and label")
        # Arrays, or lists of numbers in copies that were written again.
        sequences = []
        for key in keys:
            ids = np.asarray(record[key])
            if ids.ndim != 1 or ids.dtype.kind not in "iu":
                kind = f"{ids.dtype} {ids.shape}"
                raise ValueError(f"{where}: {key} must be a sequence of whole numbers, got {kind}")
            sequences.append(ids)
        label = as_label(record["label"], self.num_classes, where)
        return sequences, label

    def _convert(self, ids: np.ndarray, label: int, where: str) -> np.ndarray:
        """Convert the ids of a file to stored ids (length,) uint8."""
        if self.kind == "pixels":
            check_length(ids, self.length, where)
            return _checked(ids, 0, 255, where).astype(np.uint8)
        # Texts are padded with zeros, which are not bytes: byte b is id b + 1.
        ids = strip_padding(ids)
        if self.kind == "bytes":
            return (_checked(ids, 1, 256, where) - 1).astype(np.uint8)
        return self.id_map.apply(ids, label, where)

    @cached_property
    def id_map(self) -> IdMap:
        """The ids of ListOps in these files, recovered from the smallest of them."""
        # All files of a task were written by one run of the script, with one numbering.
        paths = self.files.values()
        smallest = min(paths, key=lambda path: path.stat().st_size)
        sequences = []
        labels = []
        for number, record in enumerate(_records(smallest, _no_progress), start=1):
            where = f"{smallest}, example {number}"
            ids, label = self._parse(record, where)
            sequences.append(strip_padding(ids[0]))
            labels.append(label)
            if number == SAMPLE:
                break
        return recover_ids(sequences, labels, str(smallest))


def find_files(folder: Path, stem: str) -> dict[str, Path]:
    """Find the pickle of each split.

    Raises:
        ValueError: one of them is missing.
    """
    for prefix in PREFIXES:
        files = _files(folder, prefix + stem)
        missing = [path.name for path in files.values() if not path.is_file()]
        if not missing:
            return files
        # Some of them: an incomplete copy.
        if len(missing) < len(files):
            raise ValueError(f"{folder} lacks {', '.join(missing)}: all three of train, dev and test are needed")
    raise ValueError(f"{folder} has no lra-{stem}.{{train,dev,test}}.pickle")


def _files(folder: Path, name: str) -> dict[str, Path]:
    """The file of each split, whether it exists or not."""
    return {split: folder / f"{name}.{part}.pickle" for split, part in PARTS.items()}


def has_files(folder: Path, stem: str) -> bool:
    """Whether a folder holds at least one pickle of a task."""
    for prefix in PREFIXES:
        files = _files(folder, prefix + stem)
        if any(path.is_file() for path in files.values()):
            return True
    return False


def strip_padding(ids: np.ndarray) -> np.ndarray:
    """Remove the zeros at the end of a sequence."""
    (real,) = np.nonzero(ids)
    length = real[-1] + 1 if len(real) else 0
    return ids[:length]


def _checked(ids: np.ndarray, low: int, high: int, where: str) -> np.ndarray:
    if not len(ids):
        return ids
    smallest = ids.min()
    largest = ids.max()
    if smallest < low or largest > high:
        raise ValueError(f"{where}: ids from {smallest} to {largest}, where {low} to {high} are valid")
    return ids


def _records(path: Path, progress: Progress) -> Iterator[Any]:
    total = round(path.stat().st_size / 1e6)
    reported = 0
    with open(path, "rb") as file:
        try:
            for record in safe_pickle.items(file):
                yield record
                num_read = round(file.tell() / 1e6)
                if num_read > reported:
                    reported = num_read
                    progress(f"{path.name}, MB", num_read, total)
        except safe_pickle.UnsafePickle as error:
            raise ValueError(f"{path} is not a pickle of examples: {error}; nothing in it was executed") from None


def _no_progress(name: str, done: int, total: int | None) -> None:
    pass


def write_pickle(task: Export, folder: Path, progress: Progress) -> str:
    """Write ``lra-<task>.{train,dev,test}.pickle`` and return their description.

    Raises:
        ValueError: the task has real numbers instead of tokens.
    """
    if task.kind == "series":
        raise ValueError(f"layout=pickle holds token ids, {task.source.name} has real numbers; use npz or parquet")
    stem = file_stem(task)
    files = _files(folder, f"lra-{stem}")
    for split in task.splits:
        _write_list(task, split, files[split], progress)
    return (
        f"Pickled lists of dictionaries: `input_ids_0`, for pairs also `input_ids_1`, int32 ({task.length},), and "
        f"`label`. Ids are stored ids plus {task.shift}; sequences are cut to {task.limit} tokens and padded with 0."
    )


def file_stem(task: Export) -> str:
    """The task as its pickles are named."""
    source: Any = task.source
    if source.name != "pathfinder":
        return source.name
    # Imported here: no other task needs the package of the generator.
    from ..pathfinder.listing import FOLDERS

    return f"pathfinder{source.size}-{FOLDERS[source.contour]}"


def _write_list(task: Export, split: str, path: Path, progress: Progress) -> None:
    """Write a pickled list item by item, in constant memory."""
    with open(path, "wb") as file:
        file.write(HEADER)
        for number, (texts, label) in enumerate(task.examples(split, progress)):
            if number % BATCH == 0:
                # Close the batch before with APPENDS, and open the next one with MARK.
                file.write(b"(" if number == 0 else b"e(")
            record: dict[str, Any] = {}
            for place, text in enumerate(texts):
                record[f"input_ids_{place}"] = _padded(text, task)
            record["label"] = label
            file.write(_body(record))
        file.write(b"e.")


def _padded(tokens: np.ndarray, task: Export) -> np.ndarray:
    # Zeros after the last token are padding.
    ids = np.zeros(task.length, np.int32)
    real = tokens[: task.limit]
    shifted = real.astype(np.int32) + task.shift
    ids[: len(real)] = shifted
    return ids


def _body(record: dict) -> bytes:
    """The opcodes of one dictionary, without the header and the STOP of a whole pickle."""
    body = pickle.dumps(record, protocol=PROTOCOL)[2:-1]
    # NumPy 1, which those repositories need, does not know the module by its new name.
    return body.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n", 1)
