"""One packed on-disk form of a data set.

A data set is a folder. Each split has three plain binary files. ``meta.json`` describes them. ``SHA256SUMS`` has the
checksums of these files and of ``meta.json``, in the format of ``sha256sum -c``:

    <split>.tokens.bin    all sequences concatenated, (total,) ids or (total, F) float features
    <split>.offsets.bin   int64 (n * T + 1,), sequence s is tokens[offsets[s] : offsets[s + 1]]; tower t of example i is
                          sequence s = i * T + t
    <split>.labels.bin    int64 or float32 (n,)

Data that were read from files of the user have raw.json too, without a checksum: the path and the state of these files.

Shapes: n examples, T towers (sequences of one example, 2 for Retrieval, else 1), F features.
"""

import glob
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..io.atomic import Unreadable, content, digest, opened
from .progress import DELAY, ReadMeter, hash_file, reporter
from .split import ExampleChunk, Split

__all__ = ["ExampleChunk", "Split", "StoreError", "load", "raw_files", "read_provenance", "verify"]

FORMAT = 1
META = "meta.json"
SUMS = "SHA256SUMS"
RAW = "raw.json"
PARTS = ("tokens", "offsets", "labels")
# Token files of at most this many bytes are checked against their sha256 whenever they are opened (in 0.2 s).
HASHED = 2**26


class StoreError(ValueError):
    """The folder does not hold the expected data set; the message names the reason."""


def checksums(folder: Path, files: Mapping[str, dict]) -> bytes:
    """Return the content of SHA256SUMS: the files with these entries in meta.json, and meta.json itself."""
    sums = {name: entry["sha256"] for name, entry in files.items()}
    sums[META] = digest(folder / META)
    # Two spaces, as sha256sum writes them.
    lines = [f"{sha256}  {name}\n" for name, sha256 in sorted(sums.items())]
    return "".join(lines).encode()


def read_meta(folder: Path) -> dict[str, Any]:
    """Read meta.json. Raises StoreError if it or a file is missing or damaged; the content of files is not read."""
    if not folder.is_dir():
        raise StoreError(f"there is no data set at {folder}")
    if not (folder / META).is_file():
        raise StoreError(f"{folder} is not a data set: it has no {META}")
    try:
        meta = json.loads(content(folder / META))
        _check_meta(folder, meta)
    except OSError as error:
        raise StoreError(f"{error.filename} cannot be read: {error.strerror}") from None
    except Unreadable as error:
        raise StoreError(f"{folder / META} is damaged: {error}") from None
    except StoreError:
        raise
    # An empty or truncated file, or one of another program.
    except (ValueError, LookupError, TypeError):
        raise StoreError(f"{folder / META} is damaged") from None
    return meta


def _check_meta(folder: Path, meta: dict[str, Any]) -> None:
    """Compare meta.json with its checksum, and the names and sizes of the files with meta.json.

    Raises:
        StoreError: a file has another size, or the folder another format.
        Unreadable: meta.json does not have the checksum in SHA256SUMS, or SHA256SUMS cannot be used.
        OSError: a file is missing or cannot be read.
        LookupError, TypeError: meta.json does not describe a data set.
    """
    if meta["format"] != FORMAT:
        raise StoreError(f"{folder} has format {meta['format']!r}, this version reads format {FORMAT}")
    sums = folder / SUMS
    # Folders of older versions have no SHA256SUMS.
    if sums.is_file():
        expected_sums = checksums(folder, meta["files"])
        if content(sums) != expected_sums:
            raise Unreadable(f"its sha256 does not match {SUMS}")
    for name, entry in meta["files"].items():
        path = folder / name
        size = path.stat().st_size
        expected_size = entry["bytes"]
        if size != expected_size:
            raise StoreError(f"{path} is damaged: {size} bytes instead of {expected_size}")


def read_provenance(folder: Path) -> dict[str, Any]:
    """Return the provenance of a data set. Raises StoreError if it is missing or damaged."""
    return read_meta(folder)["provenance"]


def raw_files(folder: Path) -> dict[str, Any]:
    """Return the path and the state of the user's files that a data set was read from; empty if not known."""
    try:
        raw = json.loads(content(folder / RAW))
    except (Unreadable, ValueError, RecursionError):
        return {}
    return raw if isinstance(raw, dict) else {}


def load(folder: Path, provenance: dict | None = None) -> dict[str, Split]:
    """Return the splits of a folder, memory-mapped.

    Checksums of offsets and labels are always compared, checksums of tokens up to ``HASHED`` bytes; ``verify`` compares
    all of them.

    Args:
        folder: the data set.
        provenance: provenance of the source; None: any.

    Raises:
        StoreError: the folder is not the complete data set of this provenance.
    """
    # Other data sets of the source explain what is different.
    if provenance is not None and not folder.exists():
        differences = "".join(_others(folder, provenance))
        raise StoreError(f"there is no data set at {folder}{differences}")
    meta = read_meta(folder)
    difference = "" if provenance is None else _difference(meta["provenance"], provenance)
    if difference:
        raise StoreError(f"{folder} is another data set: {difference}")
    splits = {}
    for split in meta["splits"]:
        tokens, offsets, labels = (_map_column(folder, meta, split, part) for part in PARTS)
        splits[split] = Split(tokens, offsets, labels, meta["towers"])
    return splits


def _difference(actual: dict, provenance: dict) -> str:
    """Name the arguments in which two data sets differ; "" if there are none."""
    # As JSON reads it back: tuples as lists.
    expected = json.loads(json.dumps(provenance))
    differences = []
    for key in sorted(expected | actual):
        actual_value = actual.get(key)
        expected_value = expected.get(key)
        if actual_value != expected_value:
            differences.append(f"{key} {actual_value!r} instead of {expected_value!r}")
    return ", ".join(differences)


def _others(folder: Path, provenance: dict) -> Iterator[str]:
    """Describe the other prepared data sets of the same source by what differs in them."""
    source_name = folder.name.rpartition("-")[0]
    pattern = f"{glob.escape(source_name)}-????????"
    for other in sorted(folder.parent.glob(pattern)):
        try:
            meta = read_meta(other)
        except StoreError:
            continue
        yield f"; {other} has {_difference(meta['provenance'], provenance)}"


def _map_column(folder: Path, meta: dict[str, Any], split: str, part: str) -> Tensor:
    """Map one file of a split into memory, after comparing its checksum unless it is a large file of tokens."""
    name = f"{split}.{part}.bin"
    path = folder / name
    entry = meta["files"][name]
    shape = tuple(entry["shape"])
    with _readable(path):
        if entry["bytes"] <= HASHED or part != "tokens":
            _check_sha(path, entry, digest(path))
        # Mode "c" is copy-on-write: processes share the file's pages, and torch sees a writable array.
        array = np.memmap(path, entry["dtype"], mode="c", shape=shape)
    return torch.from_numpy(array)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn the error of a file that cannot be read into a StoreError that names it."""
    try:
        yield
    except Unreadable as error:
        raise StoreError(f"{path} is damaged: {error}") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None


def _check_sha(path: Path, entry: dict[str, Any], sha256: str) -> None:
    if sha256 != entry["sha256"]:
        raise StoreError(f"{path} is damaged: its sha256 does not match {META}")


def verify(folder: Path) -> None:
    """Compare the sha256 of meta.json and of every file of a split.

    Raises:
        StoreError: a file is damaged, which the message names, or there is no SHA256SUMS.
    """
    meta = read_meta(folder)
    if not (folder / SUMS).is_file():
        raise StoreError(f"{folder / SUMS} is not there or not a file")
    files = meta["files"]
    total = sum(entry["bytes"] for entry in files.values())
    # One bar over the bytes of all files.
    with ExitStack() as stack:
        progress = stack.enter_context(reporter(folder.name, DELAY))
        meter = stack.enter_context(ReadMeter(str(folder), progress, "checksums", total))
        for name, entry in files.items():
            path = folder / name
            with _readable(path), opened(path) as file:
                sha256 = hash_file(file, meter)
            _check_sha(path, entry, sha256)
