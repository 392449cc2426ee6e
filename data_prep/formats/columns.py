"""Parquet and Arrow files of the ``datasets`` package: one file or several for each split, see ``column_files``.

Needs the extra ``parquet`` (pyarrow).
"""

import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lra.console import pip_install
from lra.data.progress import Progress

from ..expressions import encode
from .column_files import NAMES, find_parts
from .layout import CHUNK, Export, Kind, Reader, SequenceExample, as_label, check_length, decode_image

# Usual names of columns; of several, the first one is read. Ids come last: another tokenizer may have made them.
INPUTS = ("text1", "text", "Source", "source", "image", "img", "input_ids_0", "input_ids")
SECOND = {"input_ids_0": "input_ids_1", "text1": "text2"}
LABELS = ("label", "labels", "Target", "target")
# What an example without an input lacks.
NOUNS: dict[Kind, str] = {"bytes": "text", "pixels": "image", "expression": "expression"}
BATCH = 1024  # examples read at a time
# Last bytes of an arrow stream.
STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"

Row = tuple[list[np.ndarray], int | float]  # numbers of each text, and the label


class ColumnReader(Reader):
    """Reader of one task's columns, in constant memory.

    Args:
        path: folder of the files.
        kind: kind of tokens.
        num_texts: texts per example.
        num_classes: number of labels.
        length: pixels of an image; None for texts.
        columns: names of the input columns, one or two, then of the label; None for the usual names.
        allow_colours: whether images may have colours.

    Raises:
        ValueError: files are missing or named in two styles, or ``columns`` has another number of names.

    A column of inputs holds lists of stored ids, or text and bytes (an expression for ListOps), or images as PNG or
    JPEG, with or without a dictionary around their bytes. Images with colours become three planes R, G, B
    of ``length`` values each, which only Image reads.
    """

    def __init__(
        self,
        path: Path,
        *,
        kind: Kind,
        num_texts: int,
        num_classes: int,
        length: int | None = None,
        columns: Sequence[str] | None = None,
        allow_colours: bool = False,
    ):
        self.parts = find_parts(path)
        # The first file of a split stands for it in messages; ``paths`` and ``parts_of`` list all of them.
        first_parts = {split: parts[0] for split, parts in self.parts.items()}
        super().__init__(path, first_parts)
        self.kind = kind
        self.num_texts = num_texts
        self.num_classes = num_classes
        self.length = length
        self.columns = columns
        self.options = " ".join(columns or ())
        self.allow_colours = allow_colours
        if columns is not None and len(columns) != num_texts + 1:
            raise ValueError(f"source.columns must be {num_texts} of inputs, then the label, got {list(columns)}")

    @property
    def identity(self) -> dict[str, Any]:
        identity = super().identity
        if self.columns is not None:
            identity["columns"] = list(self.columns)
        return identity

    @property
    def paths(self) -> list[Path]:
        return [path for parts in self.parts.values() for path in parts]

    def parts_of(self, split: str) -> list[Path]:
        return self.parts[split]

    def _examples(self, split: str, progress: Progress) -> Iterator[SequenceExample]:
        if split not in self.parts:
            prefixes = ", ".join(NAMES[split])
            raise ValueError(f"{self.path} has no .parquet or .arrow file of {split}; its name begins with {prefixes}")
        for path in self.parts[split]:
            number = 0
            for names, batch in self._batches(path, progress):
                columns = [_values(batch[name]) for name in names]
                for *inputs, label in zip(*columns, strict=True):
                    number += 1
                    where = f"{path}, example {number}"
                    texts = [self._convert(value, where) for value in inputs]
                    yield tuple(texts), as_label(label, self.num_classes, where)

    def _batches(self, path: Path, progress: Progress) -> Iterator[tuple[list[str], Any]]:
        """Yield the names of the columns and batches of them."""
        arrow = import_pyarrow()
        try:
            with open(path, "rb") as file:
                schema, total, batches = _open(arrow, file, path)
                names = self._names(schema.names, path)
                done = 0
                for batch in batches(names):
                    yield names, batch
                    done += batch.num_rows
                    progress(path.name, done, total)
        except (arrow.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            kind = path.suffix[1:]
            raise ValueError(f"{path} is damaged or not a {kind} file: {reason}") from None

    def _names(self, present: list[str], path: Path) -> list[str]:
        """Choose the columns to read. Raises ValueError with the columns that there are."""
        # Columns of the user, or the first usual names that the file has.
        if self.columns is not None:
            names = list(self.columns)
        else:
            inputs = [name for name in INPUTS if name in present]
            labels = [name for name in LABELS if name in present]
            names = inputs[:1]
            if names and self.num_texts == 2:
                names.append(SECOND.get(names[0], ""))
            names += labels[:1]
        has_names = set(names) <= set(present)
        if len(names) != self.num_texts + 1 or not has_names:
            example = "[text1,text2,label]" if self.num_texts == 2 else "[text,label]"
            raise ValueError(f"{path} has the columns {', '.join(present)}: name them by source.columns={example}")
        return names

    def _convert(self, value: Any, where: str) -> np.ndarray:
        """Convert one value to stored ids (length,) uint8."""
        # The package stores an image as a dictionary of its bytes and its path.
        if isinstance(value, dict):
            value = value.get("bytes")
        if value is None:
            raise ValueError(f"{where}: no {NOUNS[self.kind]}")
        if self.kind == "pixels" and isinstance(value, bytes):
            try:
                tokens = decode_image(value, allow_colours=self.allow_colours).reshape(-1)
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
            if self._has_colours(tokens):
                return tokens
        elif isinstance(value, str | bytes) and self.kind == "expression":
            try:
                expression = value.decode() if isinstance(value, bytes) else value
                tokens = encode(expression)
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
        elif isinstance(value, str | bytes) and self.kind == "bytes":
            data = value.encode() if isinstance(value, str) else value
            tokens = np.frombuffer(data, np.uint8)
        else:
            tokens = _ids(value, where)
            if self.kind == "bytes" and len(tokens) and tokens[-1] == 0:
                raise ValueError(f"{where}: ids end in 0; texts must be bytes 0 to 255 without padding, not byte + 1")
        check_length(tokens, self.length, where)
        return tokens

    def _has_colours(self, tokens: np.ndarray) -> bool:
        """Whether a decoded image has three planes."""
        if not self.allow_colours or self.length is None:
            return False
        return len(tokens) == 3 * self.length


def import_pyarrow() -> Any:
    """Import pyarrow with its parquet module. Raises ValueError that names the extra if it is not installed."""
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet  # noqa: F401 an attribute of pyarrow from here on
    except ImportError:
        raise ValueError(f"parquet and arrow files need pyarrow: {pip_install('parquet')}") from None
    return sys.modules["pyarrow"]


def _open(arrow: Any, file: Any, path: Path) -> tuple[Any, int | None, Any]:
    """Return the schema, the number of examples if it is known, and a function of column names that yields batches."""
    if path.suffix == ".parquet":
        table = arrow.parquet.ParquetFile(file)
        return table.schema_arrow, table.metadata.num_rows, lambda names: table.iter_batches(BATCH, columns=names)
    try:
        # save_to_disk and the cache of the package write streams; other programs write files.
        stream = arrow.ipc.open_stream(file)
    except arrow.ArrowInvalid:
        file.seek(0)
        reader = arrow.ipc.open_file(file)
        indices = range(reader.num_record_batches)
        return reader.schema, None, lambda names: map(reader.get_batch, indices)
    _check_stream_end(file, path)
    return stream.schema, None, lambda names: iter(stream)


def _check_stream_end(file: Any, path: Path) -> None:
    """Raise ValueError if a stream has no end marker; pyarrow does not notice a stream that is cut between batches."""
    position = file.tell()
    file.seek(-len(STREAM_END), os.SEEK_END)
    end = file.read()
    file.seek(position)
    if end != STREAM_END:
        raise ValueError(f"{path} lacks the end marker of an arrow stream, so it may be truncated: get it again")


def _values(column: Any) -> Iterable[Any]:
    """The values of a column; lists of numbers as slices of one array, without Python objects for each number."""
    arrow = import_pyarrow()
    kind = column.type
    types = arrow.types
    is_list = types.is_list(kind) or types.is_large_list(kind)
    has_numbers = is_list and types.is_integer(kind.value_type)
    if not has_numbers or column.null_count:
        return column.to_pylist()
    # Arrow keeps a column of lists as offsets into one array.
    numbers = column.values.to_numpy(zero_copy_only=False)
    bounds = column.offsets.to_pylist()
    return (numbers[start:end] for start, end in itertools.pairwise(bounds))


def _ids(value: Any, where: str) -> np.ndarray:
    ids = np.asarray(value)
    is_valid = ids.ndim == 1
    # An empty list has no type.
    if is_valid and len(ids):
        is_whole = ids.dtype.kind in "iu"
        is_valid = is_whole and ids.min() >= 0 and ids.max() <= 255
    if not is_valid:
        raise ValueError(f"{where}: not text, an image or a list of ids from 0 to 255")
    return ids.astype(np.uint8)


def write_parquet(task: Export, folder: Path, progress: Progress) -> str:
    """Write ``{train,validation,test}.parquet`` in constant memory, and return their description."""
    arrow = import_pyarrow()
    count = task.source.towers
    inputs = ["input_ids"]
    if count > 1:
        inputs = [f"input_ids_{number}" for number in range(count)]
    for name in task.splits:
        writer = None
        try:
            for batch in _batches(task, name, progress):
                # One column per text, then the labels.
                texts_of_examples, labels = zip(*batch, strict=True)
                columns = list(map(list, zip(*texts_of_examples, strict=True)))
                arrays = [_list_column(arrow, sequences) for sequences in columns]
                arrays.append(arrow.array(labels))
                table = arrow.table(arrays, names=[*inputs, "label"])
                path = folder / f"{NAMES[name][0]}.parquet"
                writer = writer or arrow.parquet.ParquetWriter(path, table.schema)
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()
    if task.kind == "series":
        return (
            f"Columns {', '.join(inputs)}, lists of the features of all positions one after the other, and label. The "
            f"model reads the first {task.limit} positions of a sequence."
        )
    return (
        f"Columns {', '.join(inputs)}, lists of stored ids, and label. The model reads the first {task.limit} ids of a "
        f"sequence and adds {task.shift} to each."
    )


def _list_column(arrow: Any, sequences: list[np.ndarray]) -> Any:
    """A column of lists, from one array of all numbers."""
    offsets = np.cumsum([0, *map(len, sequences)])
    bounds = arrow.array(offsets, arrow.int32())
    numbers = arrow.array(np.concatenate(sequences))
    return arrow.ListArray.from_arrays(bounds, numbers)


def _batches(task: Export, name: str, progress: Progress) -> Iterator[list[Row]]:
    batch: list[Row] = []
    for texts, label in task.examples(name, progress):
        # Features of a position follow each other.
        flat_texts = [tokens.reshape(-1) for tokens in texts]
        batch.append((flat_texts, label))
        if len(batch) == CHUNK:
            yield batch
            batch = []
    if batch:
        yield batch
