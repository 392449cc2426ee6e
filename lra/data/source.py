"""The source of a data set: it makes the examples and stores them."""

import hashlib
import json
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from ..console import log
from ..disk import lock
from ..disk.atomic import NO_ROOM
from ..live import live_line
from .store import ExampleChunk, Split, StoreError, load, write

Progress = Callable[[str, int, int | None], None]  # (name of the work, number done, total number or None)
SECONDS_BETWEEN_LINES = 10


@contextmanager
def reporter(name: str) -> Iterator[Progress]:
    """Report progress by a bar for each kind of work in a terminal, elsewhere by a line every ten seconds."""
    with live_line() as bars:
        bar: dict[str, Any] = {}
        last = time.monotonic()

        def report(what: str, done: int, total: int | None) -> None:
            nonlocal last
            if what not in bar:
                bar[what] = bars.add_task(f"{name} {what}", total=total, text="")
            bars.update(bar[what], completed=done, total=total)
            if bars.disable and (done == total or time.monotonic() - last > SECONDS_BETWEEN_LINES):
                last = time.monotonic()
                log(f"{name} {what}: {done}" + (f" of {total}" if total else ""))

        yield report


@contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Hold the lock beside a folder, after waiting for a live owner. Raises ValueError if it cannot be written."""
    waiting = lambda owner: log(f"another process is preparing {folder}, waiting for {owner}")
    with ExitStack() as held:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(lock.hold(folder.with_name(f"{folder.name}{lock.NAME}"), waiting))
        except OSError as error:
            reason = f"cannot be written ({error.strerror}): choose another data folder"
            raise ValueError(f"{folder.parent} {reason}") from None
        yield


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def no_room(folder: Path) -> Iterator[None]:
    """Turn the error of a full disk in the block into a ValueError of one line."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        remedy = "make room or choose another data folder"
        raise ValueError(f"{folder} cannot be written ({error.strerror}): {remedy}") from None


class Source(ABC):
    """One data set with its arguments.

    Attributes of a class: `version` changes whenever the same arguments give other bytes. `generated`: no download is
    needed, so `open` prepares it if necessary. `stored`: False if rows are made when they are read, so that there is
    nothing to prepare. `manual`: it needs files that the user has to provide.
    """

    name: ClassVar[str]
    version: ClassVar[str]
    generated: ClassVar[bool]
    stored: ClassVar[bool] = True
    manual: ClassVar[bool] = False
    towers: ClassVar[int] = 1
    licence: ClassVar[str] = "unknown"
    origin: ClassVar[str] = "unknown"
    alphabet: ClassVar[Sequence[str]] = ()  # names of the ids 0, 1, ... unless they are bytes or grey levels
    classes: ClassVar[Sequence[str]] = ()  # names of the labels 0, 1, ... unless they are numbers themselves
    download: Any = None  # the download.Download of a source that has one
    sizes: Mapping[str, int | None] = {}  # examples of each split, None for all
    floor: float | None = None  # score in percent that is known to need nothing of what the task asks for
    command: str | None = None  # to prepare it, if its arguments are not the default ones

    @property
    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """Every argument that influences the bytes, as JSON values; the number of workers does not."""

    def fetch(self, root: Path, progress: Progress) -> None:  # noqa: B027 nothing to do for what is generated
        """Get the files that `splits` reads; downloads are kept in root/downloads. Raises ValueError on failure."""

    def splits(self, *, workers: int, progress: Progress) -> Mapping[str, Iterable[ExampleChunk]]:
        """Make the chunks of examples of each split; splits are consumed once, in the order of the mapping."""
        raise ValueError(f"{self.name} is made as it is read, there is nothing to store")

    @property
    def dev_size(self) -> int | None:
        """The number of dev examples of the official data or of those asked for; None if only the data can tell."""
        return self.sizes.get("val")

    @property
    def substitute(self) -> str | None:
        """The start of the checksum of a file read in place of the official one.

        None if it is the official one, if no official checksum is published, and for what is generated.
        """
        return self.download.substitute if self.download is not None else None

    @property
    def provenance(self) -> dict[str, Any]:
        return {"name": self.name, "version": self.version, **self.arguments}

    def folder(self, root: Path | str) -> Path:
        canonical = json.dumps(self.provenance, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return Path(root) / f"{self.name}-{hashlib.sha256(canonical.encode()).hexdigest()[:8]}"

    def load(self, root: Path | str) -> dict[str, Split]:
        """Open the prepared splits. Raises StoreError, with the remedy, if they are missing or damaged."""
        folder = self.folder(root)
        try:
            return load(folder, self.provenance, self.towers)
        except StoreError as error:
            force = " force=true" if folder.exists() else ""
            command = self.command or f"python -m data_prep task={self.name}"
            raise StoreError(f"{error}; to make it: {command}{force}") from None

    def open(self, root: Path | str) -> dict[str, Split]:
        """Open the splits as `load` does, and prepare a generated data set first if it is missing."""
        if self.generated and not self.folder(root).exists():
            log(f"{self.name}: no data at {self.folder(root)} yet, preparing it once")
            self.prepare(root)
        return self.load(root)

    def prepare(self, root: Path | str, *, workers: int | None = None, force: bool = False) -> Path:
        """Make the data set unless it exists.

        Of several processes one prepares and the others wait for it.

        Args:
            root: folder of all data.
            workers: threads, by default as many as cores.
            force: whether to replace a data set that exists.

        Returns:
            Its folder.

        Raises:
            StoreError: a damaged data set exists, and `force` is false.
            ValueError: the root cannot be written, or the disk is full.
        """
        folder = self.folder(root)
        if force or not folder.exists():
            with exclusive_lock(folder):
                if force or not folder.exists():  # no other process has made it meanwhile
                    self._make(folder, workers or cores(), force)
                    return folder
        self.load(root)
        return folder

    def _make(self, folder: Path, workers: int, force: bool) -> None:
        for left in folder.parent.glob(f"{folder.name}.tmp-*"):  # of a process that died: a live one holds the lock
            shutil.rmtree(left)
        start = time.perf_counter()
        with reporter(self.name) as progress:
            self.fetch(folder.parent, progress)
            splits = self.splits(workers=workers, progress=progress)
            with no_room(folder):
                write(folder, splits, provenance=self.provenance, towers=self.towers, replace=force)
        size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
        log(f"{self.name}: {size:.1f} MB in {time.perf_counter() - start:.1f} s at {folder}")
