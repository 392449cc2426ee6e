"""One packed on-disk form of a data set.

A data set is a folder. Each split has three plain binary files; `meta.json` describes them, and `SHA256SUMS` has the
sums of all, in the format of `sha256sum -c`:

    <split>.tokens.bin    all sequences concatenated, (total,) ids or (total, F) float features
    <split>.offsets.bin   int64 (n * T + 1,), sequence r is tokens[offsets[r] : offsets[r + 1]]
    <split>.labels.bin    int64 or float32 (n,)

Data that were read from files have raw.json too: the path and the state of these files.

Shapes: n examples, T towers (sequences of one example, 2 for Retrieval, else 1), F features.
"""

import glob
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..disk.atomic import Unreadable, content, digest, sync
from .split import ExampleChunk, Split

FORMAT = 1
META = "meta.json"
SUMS = "SHA256SUMS"
RAW = "raw.json"
PARTS = ("tokens", "offsets", "labels")
DTYPES = {"tokens": ("|u1", "<u2", "<i2", "<i4", "<i8", "<f4"), "offsets": ("<i8",), "labels": ("<i8", "<f4")}
# Bytes of a file up to which its sha256 is compared whenever it is opened, which takes a fifth of a second.
HASHED = 2**26


class StoreError(ValueError):
    """The folder does not hold the expected data set; the message names the reason."""


class _Column:
    """One file of a split that is being written and hashed; all its chunks have one dtype and one row shape."""

    def __init__(self, path: Path):
        self.path = path
        self.file = open(path, "wb")  # noqa: SIM115 closed by `close`
        self.sha = hashlib.sha256()
        self.kind: tuple[np.dtype, tuple[int, ...]] | None = None
        self.size = 0

    def append(self, array: np.ndarray) -> None:
        kind = (array.dtype, array.shape[1:])
        if self.kind is None:
            self.kind = kind
        if kind != self.kind:
            raise ValueError(f"{self.path}: a chunk of {kind} follows one of {self.kind}")
        data = np.ascontiguousarray(array)
        self.file.write(data)
        self.sha.update(data)
        self.size += data.nbytes

    def entry(self) -> dict[str, Any]:
        """The entry of the file in meta.json."""
        dtype, tail = self.kind
        shape = [self.size // (dtype.itemsize * math.prod(tail)), *tail]
        return {"dtype": dtype.str, "shape": shape, "bytes": self.size, "sha256": self.sha.hexdigest()}

    def close(self) -> None:
        self.file.close()


def _write_split(work: Path, split: str, chunks: Iterable[ExampleChunk], towers: int) -> dict[str, dict]:
    """Write the files of a split and return their entries in meta.json."""
    with ExitStack() as stack:
        columns = {part: _Column(work / f"{split}.{part}.bin") for part in PARTS}
        for column in columns.values():
            stack.callback(column.close)
        columns["offsets"].append(np.zeros(1, np.int64))
        end = 0
        for tokens, lengths, labels in chunks:
            if lengths.sum() != len(tokens) or len(lengths) != towers * len(labels):
                raise ValueError(f"{split}: {len(tokens)} tokens, {len(lengths)} lengths, {len(labels)} labels clash")
            if labels.dtype not in (np.int64, np.float32):
                raise ValueError(f"{split}: labels must be int64 or float32, not {labels.dtype}")
            columns["tokens"].append(tokens)
            columns["offsets"].append(end + np.cumsum(lengths, dtype=np.int64))
            columns["labels"].append(labels)
            end += len(tokens)
    if not end:
        raise ValueError(f"{split}: there is nothing to write, no example has any token")
    return {column.path.name: column.entry() for column in columns.values()}


def _sums(folder: Path, files: Mapping[str, dict]) -> bytes:
    sums = {name: entry["sha256"] for name, entry in files.items()} | {META: digest(folder / META)}
    return "".join(f"{sums[name]}  {name}\n" for name in sorted(sums)).encode()


def write(
    folder: Path,
    splits: Mapping[str, Iterable[ExampleChunk]],
    *,
    provenance: dict,
    towers: int = 1,
    replace: bool = False,
    raw: dict | None = None,
) -> None:
    """Write the splits chunk by chunk; `folder` appears complete or not at all.

    Until then the files stand next to it in `<folder>.tmp-*`, which is removed on every exception.

    Args:
        folder: the data set.
        splits: chunks by the name of their split, each consumed once and in order.
        provenance: the source's name, version and arguments, compared by ``load``.
        towers: sequences of an example.
        replace: replace a folder that exists.
        raw: path and state of the files that were read, which are no part of the provenance.

    Raises:
        FileExistsError: the folder exists and not `replace`.
        OSError: the disk is full or cannot be written.
        ValueError: chunks do not fit together.
    """
    if folder.exists() and not replace:
        raise FileExistsError(f"{folder} exists already")
    # Not tempfile.mkdtemp: its mode 0700 would survive the rename and lock others out of a shared data folder.
    work = folder.with_name(f"{folder.name}.tmp-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        work.mkdir(parents=True)
        files = {}
        for split, chunks in splits.items():
            files |= _write_split(work, split, chunks, towers)
        meta = {"format": FORMAT, "provenance": provenance, "towers": towers, "splits": list(splits), "files": files}
        (work / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")
        (work / SUMS).write_bytes(_sums(work, files))
        # Not in meta.json: the same data from another place have the same checksums.
        if raw is not None:
            (work / RAW).write_text(json.dumps(raw, indent=1), encoding="utf-8")
        for path in (*work.iterdir(), work):
            sync(path)
        old = work.with_name(f"{work.name}-old")
        if folder.exists():
            folder.rename(old)
        work.rename(folder)
        sync(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


@contextmanager
def _meta(folder: Path) -> Iterator[dict[str, Any]]:
    """Read the description of a folder whose files have their full size; an error of the body is a damaged file."""
    if not folder.is_dir():
        raise StoreError(f"there is no data set at {folder}")
    if not (folder / META).is_file():
        raise StoreError(f"{folder} is not a data set: it has no {META}")
    try:
        meta = json.loads(content(folder / META))
        if (folder / SUMS).is_file() and content(folder / SUMS) != _sums(folder, meta["files"]):
            raise Unreadable(f"its sha256 is not the one in {SUMS}")
        if meta["format"] != FORMAT:
            raise StoreError(f"{folder} has format {meta['format']!r}, this version reads format {FORMAT}")
        if sorted(meta["files"]) != sorted(f"{split}.{part}.bin" for split in meta["splits"] for part in PARTS):
            raise ValueError("its files are not the files of its splits")
        if meta["towers"] not in (1, 2):
            raise ValueError(f"{meta['towers']} sequences per example")
        for name, entry in meta["files"].items():
            if Path(name).name != name:
                raise ValueError(f"{name} is not a file of the folder")
            size = (folder / name).stat().st_size
            if size != entry["bytes"]:
                raise StoreError(f"{folder / name} is damaged: {size} bytes instead of {entry['bytes']}")
        yield meta
    except OSError as error:
        raise StoreError(f"{error.filename} cannot be read: {error.strerror}") from None
    except Unreadable as error:
        raise StoreError(f"{folder / META} is damaged: {error}") from None
    except StoreError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, ArithmeticError, MemoryError):
        raise StoreError(f"{folder / META} is damaged") from None


def stored(folder: Path) -> dict[str, Any]:
    """Return the provenance of a data set. Raises StoreError if it is missing or damaged."""
    with _meta(folder) as meta:
        if not isinstance(meta["provenance"], dict):
            raise ValueError("the provenance is not a mapping")
        return meta["provenance"]


def raw_files(folder: Path) -> dict[str, Any]:
    """Return the path and the state of the files that a data set was read from; empty if they are not known."""
    try:
        raw = json.loads(content(folder / RAW))
    except (Unreadable, ValueError, RecursionError):
        return {}
    return raw if isinstance(raw, dict) else {}


def load(folder: Path, provenance: dict | None = None, towers: int | None = None) -> dict[str, Split]:
    """Return the splits of a folder, memory-mapped.

    Checksums of offsets and labels are always compared, checksums of tokens up to ``HASHED`` bytes; ``verify`` compares
    all of them.

    Args:
        folder: the data set.
        provenance: provenance of the source; None: any.
        towers: sequences of an example of the source; None: any number.

    Raises:
        StoreError: the folder is not the complete data set of this provenance.
    """
    if provenance is not None and not folder.exists():
        raise StoreError(f"there is no data set at {folder}{''.join(_others(folder, provenance))}")
    with _meta(folder) as meta:
        difference = "" if provenance is None else _difference(meta["provenance"], provenance)
        if difference:
            raise StoreError(f"{folder} is another data set: {difference}")
        if towers not in (None, meta["towers"]):
            count = f"{meta['towers']} sequences per example"
            raise StoreError(f"{folder} is another data set: {count} instead of {towers}")
        splits = {}
        for split in meta["splits"]:
            columns = [_map_column(folder, meta, split, part) for part in PARTS]
            splits[split] = Split(*columns, meta["towers"])
            _check_offsets(splits[split], folder / f"{split}.offsets.bin")
        return splits


def _difference(actual: dict, provenance: dict) -> str:
    """Name the arguments in which two data sets differ; "" if there are none."""
    # As JSON reads it back: tuples as lists.
    expected = json.loads(json.dumps(provenance))
    keys = [key for key in sorted(expected | actual) if expected.get(key) != actual.get(key)]
    return ", ".join(f"{key} {actual.get(key)!r} instead of {expected.get(key)!r}" for key in keys)


def _others(folder: Path, provenance: dict) -> Iterator[str]:
    """Describe the other prepared data sets of the same source by what differs in them."""
    for other in sorted(folder.parent.glob(f"{glob.escape(folder.name.rpartition('-')[0])}-????????")):
        with suppress(ValueError), _meta(other) as meta:
            yield f"; {other} has {_difference(meta['provenance'], provenance)}"


def _map_column(folder: Path, meta: dict[str, Any], split: str, part: str) -> Tensor:
    name = f"{split}.{part}.bin"
    entry = meta["files"][name]
    path = folder / name
    if entry["dtype"] not in DTYPES[part] or (part != "tokens" and len(entry["shape"]) != 1):
        raise ValueError(f"{name} of {entry['dtype']!r} and shape {entry['shape']}")
    if entry["bytes"] <= HASHED or part != "tokens":
        _check_sha(path, entry)
    # Mode "c" is copy-on-write: processes share the file's pages, and torch sees a writable array.
    array = np.memmap(path, entry["dtype"], mode="c", shape=tuple(entry["shape"]))
    if array.nbytes != entry["bytes"]:
        raise ValueError(f"{name} of shape {entry['shape']}")
    return torch.from_numpy(array)


def _check_offsets(split: Split, path: Path) -> None:
    """Raise StoreError if the sequences of a split are not its tokens, one after the other."""
    offsets = split.offsets
    if len(offsets) != len(split) * split.towers + 1:
        raise StoreError(f"{path} is damaged: {len(offsets) - 1} sequences for {len(split)} examples of {split.towers}")
    if offsets[0] != 0 or offsets[-1] != len(split.tokens) or (offsets[1:] < offsets[:-1]).any():
        raise StoreError(f"{path} is damaged: its offsets do not cover the {len(split.tokens)} tokens")


def _check_sha(path: Path, entry: dict[str, Any]) -> None:
    try:
        if digest(path) == entry["sha256"]:
            return
    except Unreadable as error:
        raise StoreError(f"{path} is damaged: {error}") from None
    raise StoreError(f"{path} is damaged: its sha256 is not the one written")


def verify(folder: Path) -> None:
    """Compare the sha256 of every file; raise StoreError that names the first damaged one."""
    with _meta(folder) as meta:
        if not (folder / SUMS).is_file():
            raise StoreError(f"{folder / SUMS} is not there or not a file")
        for name, entry in meta["files"].items():
            _check_sha(folder / name, entry)
