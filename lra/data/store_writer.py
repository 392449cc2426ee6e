"""Write a data set in the form that ``store`` reads, chunk by chunk."""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from ..io.atomic import sync
from .split import ExampleChunk
from .store import FORMAT, META, PARTS, RAW, SUMS, checksums

# No uint16: torch cannot index tensors of that type.
TOKEN_DTYPES = ("uint8", "int16", "int32", "int64", "float32")


class _Column:
    """One file of a split that is written and hashed; its chunks have the same dtype and shape after the first axis."""

    def __init__(self, path: Path):
        self.path = path
        self.file = open(path, "wb")  # noqa: SIM115 closed by ``close``
        self.sha = hashlib.sha256()
        self.kind: tuple[np.dtype, tuple[int, ...]] | None = None
        self.size = 0

    def append(self, array: np.ndarray) -> None:
        kind = (array.dtype, array.shape[1:])
        if self.kind is None:
            self.kind = kind
        if kind != self.kind:
            raise ValueError(f"{self.path}: a chunk of {kind} follows one of {self.kind}")
        data = np.ascontiguousarray(array).data
        self.file.write(data)
        self.sha.update(data)
        self.size += data.nbytes

    def entry(self) -> dict[str, Any]:
        """The entry of the file in meta.json."""
        assert self.kind is not None, "a column that is written has a chunk"
        dtype, tail = self.kind
        row_bytes = dtype.itemsize * math.prod(tail)
        shape = [self.size // row_bytes, *tail]
        return {"dtype": dtype.str, "shape": shape, "bytes": self.size, "sha256": self.sha.hexdigest()}

    def close(self) -> None:
        self.file.close()


def _write_split(work: Path, split: str, chunks: Iterable[ExampleChunk], towers: int) -> dict[str, dict]:
    """Write the files of a split and return their entries in meta.json."""
    with ExitStack() as stack:
        columns = {part: _Column(work / f"{split}.{part}.bin") for part in PARTS}
        for column in columns.values():
            stack.callback(column.close)
        # The first sequence begins at 0, each other one at the end of the sequence before it.
        columns["offsets"].append(np.zeros(1, np.int64))
        end = 0
        for chunk in chunks:
            _check_chunk(chunk, split, towers)
            ends = end + np.cumsum(chunk.lengths, dtype=np.int64)
            columns["tokens"].append(chunk.tokens)
            columns["offsets"].append(ends)
            columns["labels"].append(chunk.labels)
            end += len(chunk.tokens)
    if not end:
        raise ValueError(f"{split}: there is nothing to write, no example has any token")
    return {column.path.name: column.entry() for column in columns.values()}


def _check_chunk(chunk: ExampleChunk, split: str, towers: int) -> None:
    """Raise ValueError unless the numbers of tokens, lengths and labels fit together and the dtypes are valid."""
    tokens, lengths, labels = chunk
    num_sequences = towers * len(labels)
    if lengths.sum() != len(tokens) or len(lengths) != num_sequences:
        counts = f"{len(tokens)} tokens, {len(lengths)} lengths, {len(labels)} labels"
        raise ValueError(f"{split}: {counts} clash")
    if tokens.dtype not in TOKEN_DTYPES:
        raise ValueError(f"{split}: tokens must be {', '.join(TOKEN_DTYPES)}, not {tokens.dtype}")
    if labels.dtype not in (np.int64, np.float32):
        raise ValueError(f"{split}: labels must be int64 or float32, not {labels.dtype}")


def write(
    folder: Path,
    splits: Mapping[str, Iterable[ExampleChunk]],
    *,
    provenance: dict,
    towers: int = 1,
    raw: dict | None = None,
    check: Callable[[], object] | None = None,
) -> None:
    """Write the splits chunk by chunk; ``folder`` appears complete or not at all, and replaces one that exists.

    Until then the files stand next to it in ``<folder>.tmp-*``, which is removed on every exception.

    Args:
        folder: the data set.
        splits: chunks by the name of their split, each consumed once and in order.
        provenance: the source's name, version and arguments, compared by ``load``.
        towers: sequences of an example.
        raw: path and state of the user's files, which are not part of the provenance; None for no raw.json.
        check: called when the splits are written; an error that it raises discards them.

    Raises:
        OSError: the disk is full or cannot be written.
        ValueError: chunks do not fit together, a dtype cannot be stored, or a split has no token.
    """
    # tempfile.mkdtemp is avoided: its mode 0700 would survive the rename and lock others out of a shared data folder.
    suffix = f"{os.getpid()}-{os.urandom(4).hex()}"
    work = folder.with_name(f"{folder.name}.tmp-{suffix}")
    try:
        work.mkdir(parents=True)
        # The files of all splits, their description and its checksums.
        files: dict[str, dict] = {}
        for split, chunks in splits.items():
            files |= _write_split(work, split, chunks, towers)
        if check is not None:
            check()
        meta = {"format": FORMAT, "provenance": provenance, "towers": towers, "splits": list(splits), "files": files}
        description = json.dumps(meta, indent=1)
        (work / META).write_text(description, encoding="utf-8")
        (work / SUMS).write_bytes(checksums(work, files))
        # raw.json is not part of meta.json, so that the same data from another place have the same checksums.
        if raw is not None:
            (work / RAW).write_text(json.dumps(raw, indent=1), encoding="utf-8")
        # The contents must be on the disk before the folder has its name.
        for path in (*work.iterdir(), work):
            sync(path)
        # Move an existing folder away first, and remove it last.
        old = work.with_name(f"{work.name}-old")
        if folder.exists():
            folder.rename(old)
        work.rename(folder)
        sync(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
