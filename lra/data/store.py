"""One packed on-disk form of a data set.

A data set is a folder. Each split has three plain binary files; `meta.json` describes them, and `SHA256SUMS` has the
sums of all, in the format of `sha256sum -c`:

    <split>.tokens.bin    every row after the other, (total,) ids or (total, F) float features
    <split>.offsets.bin   int64 (n * T + 1,), row r is tokens[offsets[r] : offsets[r + 1]]
    <split>.labels.bin    int64 or float32 (n,)

Shapes: n examples, T towers (rows of one example, 2 for Retrieval, else 1), B batch, F features.
"""

import glob
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..disk.atomic import Unreadable, content, digest, sync

FORMAT = 1
META, SUMS = "meta.json", "SHA256SUMS"
PARTS = ("tokens", "offsets", "labels")
DTYPES = {"tokens": ("|u1", "<u2", "<i2", "<i4", "<i8", "<f4"), "offsets": ("<i8",), "labels": ("<i8", "<f4")}
HASHED = 2**26  # bytes of a file up to which its sha256 is compared whenever it is opened, in a fifth of a second


class StoreError(ValueError):
    """The folder does not hold the data set that was asked for; one line says why."""


class ExampleChunk(NamedTuple):
    """A chunk of n examples: tokens (total,) or (total, F), lengths (n * T,) int, labels (n,) int64 or float32."""

    tokens: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True, eq=False)
class Split:
    """One split: tokens (total,) or (total, F), offsets (n * T + 1,) int64, labels (n,), T = towers."""

    tokens: Tensor
    offsets: Tensor
    labels: Tensor
    towers: int = 1

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> Tensor:
        """Stored length of every row, (n, T) int64."""
        return self.offsets.diff().view(-1, self.towers)

    def to(self, device: torch.device | str) -> "Split":
        return Split(self.tokens.to(device), self.offsets.to(device), self.labels.to(device), self.towers)

    def gather(self, index: Tensor, width: int, limit: int | None = None) -> tuple[Tensor, Tensor]:
        """Examples index (B,) as tokens (B, T, width[, F]) in the stored dtype and mask (B, T, width), True = real.

        A row keeps its first min(limit, width) tokens; the rest of the width is zero.
        """
        index = index.to(self.offsets.device)
        rows = index[:, None] * self.towers + torch.arange(self.towers, device=index.device)  # (B, T)
        start = self.offsets[rows]
        kept = (self.offsets[rows + 1] - start).clamp(max=width if limit is None else min(limit, width))
        position = torch.arange(width, device=index.device)
        mask = position < kept[..., None]  # (B, T, width)
        source = (start[..., None] + position).masked_fill_(~mask, 0)
        tokens = self.tokens.index_select(0, source.view(-1)).view(*source.shape, *self.tokens.shape[1:])
        return tokens.masked_fill_(~mask.view(*mask.shape, *(1,) * (tokens.dim() - 3)), 0), mask


def _write_split(work: Path, split: str, chunks: Iterable[ExampleChunk], towers: int) -> dict[str, dict]:
    """Write the files of a split; all chunks of a file have one dtype, and one shape but for the first dimension."""
    paths = [work / f"{split}.{part}.bin" for part in PARTS]
    kinds, end = {}, 0
    with ExitStack() as stack:
        files = [stack.enter_context(open(path, "wb")) for path in paths]
        files[1].write(np.zeros(1, np.int64))
        for tokens, lengths, labels in chunks:
            if lengths.sum() != len(tokens) or len(lengths) != towers * len(labels):
                raise ValueError(f"{split}: {len(tokens)} tokens, {len(lengths)} lengths, {len(labels)} labels clash")
            if labels.dtype not in (np.int64, np.float32):
                raise ValueError(f"{split}: labels must be int64 or float32, not {labels.dtype}")
            for file, array in zip(files, (tokens, end + np.cumsum(lengths, dtype=np.int64), labels), strict=True):
                kind = array.dtype, array.shape[1:]
                if kinds.setdefault(file.name, kind) != kind:
                    raise ValueError(f"{file.name}: a chunk of {kind} follows one of {kinds[file.name]}")
                file.write(np.ascontiguousarray(array))
            end += len(tokens)
    if not end:
        raise ValueError(f"{split}: there is nothing to write")
    return {path.name: _entry(path, *kinds[str(path)]) for path in paths}


def _entry(path: Path, dtype: np.dtype, tail: tuple[int, ...]) -> dict[str, Any]:
    """The entry of a file in meta.json."""
    size = path.stat().st_size
    shape = [size // (dtype.itemsize * math.prod(tail)), *tail]
    return {"dtype": dtype.str, "shape": shape, "bytes": size, "sha256": digest(path)}


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
) -> None:
    """Write the splits chunk by chunk; `folder` appears complete or not at all.

    Until then the files stand beside it in `<folder>.tmp-*`, which is removed on every exception.

    Args:
        folder: the data set.
        splits: chunks by the name of their split, each consumed once and in order.
        provenance: the source's name, version and arguments, compared by ``load``.
        towers: rows of an example.
        replace: replace a folder that exists.

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
    """The description of a folder whose files have their full size; what goes wrong in the body is its damage."""
    if not folder.is_dir():
        raise StoreError(f"there is no data set at {folder}")
    if not (folder / META).is_file():
        raise StoreError(f"{folder} is not a data set: it has no {META}")
    try:
        meta = json.loads(content(folder / META))
        if (folder / SUMS).is_file() and content(folder / SUMS) != _sums(folder, meta["files"]):
            raise Unreadable(f"its sha256 is not the one in {SUMS} beside it")
        if meta["format"] != FORMAT:
            raise StoreError(f"{folder} has format {meta['format']!r}, this version reads format {FORMAT}")
        if sorted(meta["files"]) != sorted(f"{split}.{part}.bin" for split in meta["splits"] for part in PARTS):
            raise ValueError("other files than those of its splits")
        if meta["towers"] not in (1, 2):
            raise ValueError(f"{meta['towers']} rows an example")
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


def load(folder: Path, provenance: dict | None = None, towers: int | None = None) -> dict[str, Split]:
    """Return the splits of a folder, memory-mapped.

    Checksums of rows and labels are always compared, those of tokens up to ``HASHED`` bytes; ``verify`` compares all.

    Args:
        folder: the data set.
        provenance: provenance of the source; None: any.
        towers: rows of an example of the source; None: any number.

    Raises:
        StoreError: the folder is not the complete data set of this provenance.
    """
    if provenance is not None and not folder.exists():
        raise StoreError(f"there is no data set at {folder}{''.join(_others(folder, provenance))}")
    with _meta(folder) as meta:
        if provenance is not None and (clash := _difference(meta["provenance"], provenance)):
            raise StoreError(f"{folder} is another data set: {clash}")
        if towers not in (None, meta["towers"]):
            raise StoreError(f"{folder} is another data set: {meta['towers']} rows an example instead of {towers}")
        splits = {}
        for split in meta["splits"]:
            splits[split] = Split(*(_column(folder, meta, split, part) for part in PARTS), meta["towers"])
            _check_rows(splits[split], folder / f"{split}.offsets.bin")
        return splits


def _difference(found: dict, provenance: dict) -> str:
    """Name the arguments in which two data sets differ; "" if there are none."""
    expected = json.loads(json.dumps(provenance))
    keys = [key for key in sorted(expected | found) if expected.get(key) != found.get(key)]
    return ", ".join(f"{key} {found.get(key)!r} instead of {expected.get(key)!r}" for key in keys)


def _others(folder: Path, provenance: dict) -> Iterator[str]:
    """Describe the data sets of the same source beside a folder, by what differs in them."""
    for other in sorted(folder.parent.glob(f"{glob.escape(folder.name.rpartition('-')[0])}-????????")):
        with suppress(ValueError), _meta(other) as meta:
            yield f"; {other} has {_difference(meta['provenance'], provenance)}"


def _column(folder: Path, meta: dict[str, Any], split: str, part: str) -> Tensor:
    name = f"{split}.{part}.bin"
    entry, path = meta["files"][name], folder / name
    if entry["dtype"] not in DTYPES[part] or (part != "tokens" and len(entry["shape"]) != 1):
        raise ValueError(f"{name} of {entry['dtype']!r} and shape {entry['shape']}")
    if entry["bytes"] <= HASHED or part != "tokens":
        _check_sha(path, entry)
    # Mode "c" is copy-on-write: processes share the file's pages, and torch sees a writable array.
    array = np.memmap(path, entry["dtype"], mode="c", shape=tuple(entry["shape"]))
    if array.nbytes != entry["bytes"]:
        raise ValueError(f"{name} of shape {entry['shape']}")
    return torch.from_numpy(array)


def _check_rows(split: Split, path: Path) -> None:
    """Raise StoreError if the rows of a split are not its tokens, one after the other."""
    offsets = split.offsets
    if len(offsets) != len(split) * split.towers + 1:
        raise StoreError(f"{path} is damaged: {len(offsets) - 1} rows of {len(split)} examples of {split.towers}")
    if offsets[0] != 0 or offsets[-1] != len(split.tokens) or (offsets[1:] < offsets[:-1]).any():
        raise StoreError(f"{path} is damaged: its rows are not the {len(split.tokens)} tokens of the split")


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
