"""The files of google-research/long-range-arena: its release, a gzipped tar archive of 7.7 GB, or a folder of them."""

import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from lra.data.source import Progress
from lra.data.store import ExampleChunk

from .archive import fingerprint, members, reading
from .download import Download

# No checksum is published. The address has been reported to answer with HTTP code 403; a mirror may be needed.
OFFICIAL = Download(url="https://storage.googleapis.com/long-range-arena/lra_release.gz", size=7_700_000_000)

Read = Callable[[BinaryIO, str, str], Iterator[ExampleChunk]]  # (content, its name for errors, split)


class Release:
    """One file for each split, in a folder or in the release archive.

    Args:
        path: the folder, or the archive.
        inner: subfolder that may hold the files, plain or .gz; in the archive a file is `inner`/name, at any depth.
        files: names by split.
    """

    def __init__(self, *, path: Path, inner: str, files: Mapping[str, str]):
        self.path, self.inner, self.files = path, inner, files

    @property
    def identity(self) -> dict[str, Any]:
        if self.path.is_file():
            return {"archive": fingerprint(self.path)}
        return {path.name: fingerprint(path) for path in self.paths().values()}

    def paths(self) -> dict[str, Path]:
        """Find the file of each split in a folder. Raises ValueError for the first that is missing."""
        inside = self.path / self.inner
        folder = inside if inside.is_dir() else self.path
        paths = {}
        for split, name in self.files.items():
            plain, packed = folder / name, folder / f"{name}.gz"
            paths[split] = packed if packed.is_file() and not plain.is_file() else plain
            if not paths[split].is_file():
                all_ = ", ".join(self.files.values())
                raise ValueError(f"{plain} is missing: source.release must be the folder of {all_}, or the archive")
        return paths

    def splits(self, read: Read, progress: Progress) -> Mapping[str, Iterable[ExampleChunk]]:
        """Read each file by `read`."""
        if self.path.is_file():
            return _Pass(self, read, progress)
        return {split: _read(path, read, split) for split, path in self.paths().items()}


def _read(path: Path, read: Read, split: str) -> Iterator[ExampleChunk]:
    with reading(path), (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        yield from read(file, str(path), split)


class _Pass(Mapping):
    """Splits in the archive's order, so that one pass over it, which takes minutes, reads all of them.

    The chunks of a split must be consumed before the next split is requested.
    """

    def __init__(self, release: Release, read: Read, progress: Progress):
        self.release, self.read, self.progress = release, read, progress

    def __iter__(self) -> Iterator[str]:
        return iter(self.release.files)

    def __len__(self) -> int:
        return len(self.release.files)

    def __getitem__(self, split: str) -> Iterator[ExampleChunk]:
        for found, chunks in self.items():
            if found == split:
                yield from chunks  # not `return chunks`: the archive is closed when `items` is released
                return

    def items(self) -> Iterator[tuple[str, Iterator[ExampleChunk]]]:
        path = self.release.path
        missing = {f"/{self.release.inner}/{name}": split for split, name in self.release.files.items()}
        place = lambda name: next((end for end in missing if f"/{name}".endswith(end)), None)
        for name, file in members(path, place, self.progress):
            split = missing.pop(place(name))
            yield split, self._chunks(file, f"{path}: {name}", split)
            if not missing:
                return
        raise ValueError(f"{path} is not the release archive or is damaged: it holds no {', '.join(missing)}")

    def _chunks(self, file: BinaryIO, name: str, split: str) -> Iterator[ExampleChunk]:
        with reading(self.release.path):
            yield from self.read(file, name, split)
