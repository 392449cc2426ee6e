"""The files of google-research/long-range-arena: its release, a gzipped tar archive of 7.7 GB, or a folder of them."""

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from posixpath import basename, dirname
from typing import IO, Any

from lra.console import log
from lra.data.progress import Progress, read_blocks
from lra.data.split import ExampleChunk

from .archive import (
    ambiguous,
    archive_in,
    expand,
    file_identity,
    hash_states,
    inside_archive,
    members,
    reading,
    split_files,
    subfolders,
)
from .download import Download
from .lines import content_digest, open_lines

# No checksum is published. The address has been reported to answer with HTTP code 403; a mirror may be needed.
OFFICIAL = Download(
    url="https://storage.googleapis.com/long-range-arena/lra_release.gz",
    size=7_700_000_000,
    alternatives=("source.release=<a copy of the release, or a folder above its tsv_data>",),
)

# The file of each split.
Paths = Mapping[str, Path]
Lines = Iterable[bytes]
# (lines, file name for errors, split) -> chunks
Read = Callable[[Lines, str, str], Iterator[ExampleChunk]]


class Release:
    """One file for each split, in a folder or in the release archive.

    In a folder, they are found at any depth up to four. Several copies with the same content count as one.

    Args:
        path: a folder that holds the files or is above them, the archive, or a folder in the archive, such as
            lra_release.gz/lra_release.
        files: file names by split.
    """

    def __init__(self, *, path: Path | str, files: Mapping[str, str]):
        self.path = expand(path)
        self.files = files

    @cached_property
    def archive(self) -> tuple[Path, str] | None:
        """The archive and a folder inside it, at or above the files, "" for any; None if the files are unpacked."""
        archive, inner = inside_archive(self.path)
        if archive.is_file():
            if archive.name.removesuffix(".gz") in self.files.values():
                raise ValueError(f"{archive} is one table: source.release must be its folder, {archive.parent}")
            return archive, inner
        # A folder may hold the archive instead of its content.
        packed = None if self.candidates else archive_in(self.path)
        return (packed, "") if packed else None

    @cached_property
    def candidates(self) -> list[dict[str, Path]]:
        """The file of each split in every folder that has all of them, nearest first; only ``path`` if it has them."""
        copies = []
        for folder in subfolders(self.path):
            paths = split_files(folder, self.files)
            if len(paths) == len(self.files):
                copies.append(paths)
            if folder == self.path and copies:
                break
        return copies

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The content of the files, whatever their place."""
        if self.archive is None:
            return _identity(self.paths)
        # Hashing the members would take a pass over the whole archive.
        archive, inner = self.archive
        identity = {"archive": file_identity(archive)}
        return identity | {"inside": inner} if inner else identity

    def stamp(self) -> str | None:
        """Summarise the state of the files; None if their folder or archive does not exist."""
        if self.archive is not None:
            archive, inner = self.archive
            return hash_states([(inner, archive.stat())])
        if not self.path.exists():
            return None
        # The state of the files of every copy.
        states = []
        for copy in self.candidates:
            for path in copy.values():
                states.append((path.name, path.stat()))
        return hash_states(states)

    @cached_property
    def paths(self) -> dict[str, Path]:
        """The file of each split in a folder.

        Raises:
            ValueError: a file is missing, or there are copies with different content.
        """
        # Copies with the same content count as one.
        if not self.candidates:
            raise self._missing()
        first = self.candidates[0]
        for other in self.candidates[1:]:
            if not _same_content(first, other):
                folders = [_folder_of(copy) for copy in self.candidates]
                raise ambiguous("source.release", [str(folder) for folder in folders])
        # A plain file is read rather than its compressed copy, which must have the same content.
        for path in first.values():
            packed = path.with_name(f"{path.name}.gz")
            if packed.is_file() and content_digest(packed) != content_digest(path):
                raise ValueError(f"{path} and {packed} have different content: delete one of them")
        return first

    def most_complete(self) -> tuple[Path, dict[str, Path]]:
        """The folder that has the files of most splits, and these files; the path itself if there are none."""
        folder = self.path
        paths: dict[str, Path] = {}
        for candidate in subfolders(self.path):
            candidate_paths = split_files(candidate, self.files)
            if len(candidate_paths) > len(paths):
                folder = candidate
                paths = candidate_paths
        return folder, paths

    def _missing(self) -> ValueError:
        """Describe the first file that is missing where most of the files are."""
        folder, paths = self.most_complete()
        missing_splits = [split for split in self.files if split not in paths]
        missing = self.files[missing_splits[0]]
        names = ", ".join(self.files.values())
        remedy = f"source.release must be the folder of {names}, a folder up to four levels above it, or the archive"
        return ValueError(f"{folder / missing} is missing: {remedy}")

    def splits(self, read: Read, progress: Progress) -> Mapping[str, Iterable[ExampleChunk]]:
        """Read each file by ``read``."""
        if self.archive is not None:
            archive, inner = self.archive
            return _ArchiveSplits(archive, inner, self.files, read, progress)
        folder = _folder_of(self.paths)
        if folder != self.path:
            log(f"reading {folder}")
        splits = {}
        for split, path in self.paths.items():
            splits[split] = _read(path, read, split, progress)
        return splits


def has_tables(folder: Path, files: Mapping[str, str]) -> bool:
    """Whether a folder holds the release archive, or it or a folder below it has a table of every split."""
    return archive_in(folder) is not None or bool(Release(path=folder, files=files).candidates)


def unless_empty(release: Release, task: str) -> Release | None:
    """Return the release, or None, after a log message, if its folder exists and has none of the files of the task."""
    # Other faults are errors as soon as the files are read.
    if not release.path.exists() or release.archive is not None:
        return release
    _, paths = release.most_complete()
    if paths:
        return release
    names = ", ".join(release.files.values())
    log(f"{task}: data.release={release.path} holds none of {names}")
    return None


def _folder_of(paths: Paths) -> Path:
    """The folder of the files of all splits."""
    first = next(iter(paths.values()))
    return first.parent


def _identity(paths: Paths) -> dict[str, Any]:
    return {path.name: file_identity(path) for path in paths.values()}


def _same_content(first: Paths, second: Paths) -> bool:
    """Whether two copies hold the same bytes, compressed or not."""
    if _identity(first) == _identity(second):
        return True
    # Equal tables may be compressed differently, or only one of them: compare what is inside.
    is_compressed = any(path.suffix == ".gz" for path in (*first.values(), *second.values()))
    if not is_compressed:
        return False
    pairs = [(path, second[split]) for split, path in first.items()]
    return all(content_digest(path) == content_digest(other) for path, other in pairs)


class _HashedFile(io.RawIOBase):
    """A file that hashes the bytes that are read from it."""

    def __init__(self, file: IO[bytes]):
        self.file = file
        self.sha = hashlib.sha256()

    def readline(self, limit: int | None = -1, /) -> bytes:
        line = self.file.readline() if limit is None else self.file.readline(limit)
        self.sha.update(line)
        return line

    def finish(self) -> str:
        """Read the rest and return the sha256 of the whole file."""
        for block in read_blocks(self.file):
            self.sha.update(block)
        return self.sha.hexdigest()


def _read(path: Path, read: Read, split: str, progress: Progress) -> Iterator[ExampleChunk]:
    """Read the file of a split from the disk."""
    with open_lines(path, progress, f"{split} file") as lines:
        yield from read(lines, str(path), split)


class _ArchiveSplits(Mapping):
    """Splits of an archive: ``items`` reads all of them in its order, in one pass, which takes minutes.

    The first folder with one of the files is read. Copies elsewhere in the archive must have the same content.
    The chunks of a split must be consumed before the next split is requested.
    """

    def __init__(self, archive: Path, inner: str, files: Mapping[str, str], read: Read, progress: Progress):
        self.archive = archive
        self.inner = inner
        self.split_of_file = {name: split for split, name in files.items()}
        self.read = read
        self.progress = progress

    def __iter__(self) -> Iterator[str]:
        return iter(self.split_of_file.values())

    def __len__(self) -> int:
        return len(self.split_of_file)

    def __getitem__(self, split: str) -> Iterator[ExampleChunk]:
        for name, chunks in self.items():
            # Not ``return chunks``: the archive is closed when ``items`` is released.
            if name == split:
                yield from chunks
                return

    # Not a view: a view could be read several times, in any order.
    def items(self) -> Iterator[tuple[str, Iterator[ExampleChunk]]]:  # type: ignore[override]
        digests: dict[str, dict[str, str]] = {}  # sha256 by folder and file
        for name, file in members(self.archive, self._is_wanted, self.progress):
            folder = dirname(name)
            digests.setdefault(folder, {})
            hashed = _HashedFile(file)
            # The first folder is read, unless the same file comes once more.
            file_name = basename(name)
            is_first_folder = folder == next(iter(digests))
            if is_first_folder and file_name not in digests[folder]:
                split = self.split_of_file[file_name]
                where = f"{self.archive}: {name}"
                yield split, self._chunks(hashed, where, split)
            with reading(self.archive):
                digest = hashed.finish()
            if digests[folder].setdefault(file_name, digest) != digest:
                remedy = "unpack it, which keeps the last copy, and set source.release to the folder"
                raise ValueError(f"{self.archive} holds {name} twice with different content: {remedy}")
        self._check(digests)

    def _is_wanted(self, name: str) -> bool:
        prefix = f"{self.inner}/" if self.inner else ""
        return basename(name) in self.split_of_file and name.startswith(prefix)

    def _check(self, digests: dict[str, dict[str, str]]) -> None:
        """Raise ValueError if the folder that was read is incomplete or a file of another folder has other content."""
        first = next(iter(digests), "")
        present = digests.get(first, {})
        missing = [name for name in self.split_of_file if name not in present]
        if missing:
            where = f"{self.archive}/{first}".rstrip("/")
            remedy = f"it must hold {', '.join(self.split_of_file)} in one folder"
            raise ValueError(f"{where} is not the release archive or is damaged: {missing[0]} is missing; {remedy}")
        for copy in digests.values():
            is_different = any(present[name] != digest for name, digest in copy.items())
            if is_different:
                places = [f"{self.archive}/{folder}" for folder in digests]
                raise ambiguous("source.release", places)

    def _chunks(self, file: _HashedFile, name: str, split: str) -> Iterator[ExampleChunk]:
        with reading(self.archive):
            yield from self.read(file, name, split)
