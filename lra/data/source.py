"""The source of a data set: it makes the examples and stores them."""

import glob
import hashlib
import json
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from ..console import log
from ..io import lock
from ..io.atomic import NO_ROOM
from . import store
from .progress import Progress, reporter
from .split import ExampleChunk, Examples
from .store import StoreError
from .store_writer import write


@contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Hold the lock next to a folder, after waiting for a live owner. Raises ValueError if it cannot be written."""
    # The lock is a file next to the folder, because the folder may not exist yet.
    path = folder.with_name(f"{folder.name}{lock.NAME}")

    def waiting(owner: lock.Owner) -> None:
        log(f"another process is preparing {folder}, waiting for {owner}")

    with ExitStack() as stack:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock.hold(path, waiting))
        except OSError as error:
            remedy = "choose another data folder"
            # In a shared folder, another user's lock cannot be opened for writing.
            if isinstance(error, PermissionError) and os.path.exists(path):
                remedy = "another user may be preparing these data; wait, or delete this file if nobody is"
            reason = f"cannot be written ({error.strerror}): {remedy}"
            raise ValueError(f"{error.filename or folder.parent} {reason}") from None
        yield


def cores() -> int:
    """The number of cores that this process may use."""
    # Linux may restrict a process to some of the cores.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def explain_full_disk(folder: Path) -> Iterator[None]:
    """Turn the error of a full disk in the block into a ValueError that names the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        remedy = "make room or choose another data folder"
        raise ValueError(f"{folder} cannot be written ({error.strerror}): {remedy}") from None


class Source(ABC):
    """One data set with its arguments.

    Class attributes:
        version: changes whenever the same arguments give other bytes.
        generated: whether no download is needed, so that ``open`` prepares the data if they are missing.
        stored: False if examples are generated when they are read; then nothing is prepared, and the class overrides
            ``load``.
        manual: whether the user has to provide files.
        towers: sequences per example.
        locations: constructor arguments that say where files are. They are not part of a run's identity, which depends
            on the contents of the files instead.

    Attributes:
        root: folder of all data, set by ``set_root``.
        recorded: flat provenance of a restored run.
        command: command that prepares the data; None for ``lra data task=<name>``.
    """

    name: ClassVar[str]
    version: ClassVar[str]
    generated: ClassVar[bool]
    stored: ClassVar[bool] = True
    manual: ClassVar[bool] = False
    towers: ClassVar[int] = 1
    licence: ClassVar[str] = "unknown"
    origin: ClassVar[str] = "unknown"
    alphabet: Sequence[str] = ()  # names of the ids 0, 1, ... unless they are bytes or grey levels
    classes: ClassVar[Sequence[str]] = ()  # names of the labels 0, 1, ... unless they are numbers themselves
    locations: ClassVar[tuple[str, ...]] = ()
    download: Any = None  # download.Download of a source that has one
    sizes: Mapping[str, int | None] = {}  # examples of each split, None for all
    analytic_chance: float | None = None  # chance level in percent by construction, such as a guess among the values
    command: str | None = None
    root: Path | None = None
    recorded: Mapping[str, Any] | None = None

    @property
    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """All arguments that influence the stored bytes, as JSON values; the number of workers is not one of them."""

    def use_release(self, release: Path) -> None:  # noqa: B027 most sources have no files there
        """Use the files of a folder with the official files of all tasks, unless the source has other files."""

    def fetch(self, root: Path, progress: Progress) -> None:  # noqa: B027 nothing to do for what is generated
        """Get the files that ``splits`` reads; downloads are kept in root/downloads. Raises ValueError on failure."""

    def splits(self, *, workers: int, progress: Progress) -> Mapping[str, Iterable[ExampleChunk]]:
        """Make the chunks of examples of each split; they are consumed once, split by split in the mapping's order."""
        raise ValueError(f"{self.name} is generated on the fly; there is nothing to store")

    @property
    def num_val(self) -> int | None:
        """The number of validation examples, official or as configured; None if only the data can tell."""
        return self.sizes.get("val")

    @property
    def substitute(self) -> str | None:
        """The start of a checksum of what replaces the official file: another archive, or a copy in another format.

        None if it is the official one, if no official checksum is published, and for generated data.
        """
        return self.download.substitute if self.download is not None else None

    @property
    def provenance(self) -> dict[str, Any]:
        return {"name": self.name, "version": self.version, **self.arguments}

    @property
    def raw(self) -> dict[str, Any] | None:
        """The path and the state of the user's files, for raw.json; None for data without such files."""
        return None

    def set_root(self, root: Path | str) -> Path:
        """Set the folder of all data, and return it with ~ expanded."""
        self.root = Path(os.path.expanduser(root))
        return self.root

    def folder(self, root: Path | str) -> Path:
        """Set the folder of all data, and return the data set's folder in it: <name>-<checksum of the provenance>."""
        root = self.set_root(root)
        # The same provenance is the same text, whatever the order of its keys.
        canonical = json.dumps(self.provenance, sort_keys=True, separators=(",", ":"), allow_nan=False)
        checksum = hashlib.sha256(canonical.encode()).hexdigest()
        return root / f"{self.name}-{checksum[:8]}"

    def load(self, root: Path | str) -> Mapping[str, Examples]:
        """Open the prepared splits. Raises StoreError, with the remedy, if they are missing or damaged."""
        folder = self.folder(root)
        try:
            return store.load(folder, self.provenance)
        except StoreError as error:
            command = self.command or f"lra data task={self.name}"
            if folder.exists():
                command += " force=true"
            raise StoreError(f"{error}; prepare it with: {command}") from None

    def open(self, root: Path | str) -> Mapping[str, Examples]:
        """Open the splits as ``load`` does, and prepare a generated data set first if it is stored and missing."""
        if self.generated and self.stored and not self.folder(root).exists():
            log(f"{self.name}: no data at {self.folder(root)} yet, preparing it once")
            self.prepare(root)
        return self.load(root)

    def prepare(self, root: Path | str, *, workers: int | None = None, force: bool = False) -> Path:
        """Make the data set unless it exists.

        If several processes call this at once, one of them prepares the data and the others wait.

        Args:
            root: folder of all data.
            workers: threads, by default as many as cores.
            force: whether to replace a data set that exists.

        Returns:
            Its folder.

        Raises:
            StoreError: a damaged data set exists, and ``force`` is false.
            ValueError: the files cannot be fetched or read, the root cannot be written, or the disk is full.
        """
        folder = self.folder(root)
        if force or not folder.exists():
            with exclusive_lock(folder):
                # Another process may have prepared it while this one waited for the lock.
                if force or not folder.exists():
                    self._make(folder, workers or cores())
                    return folder
        self.load(root)
        return folder

    def _make(self, folder: Path, workers: int) -> None:
        # Remove what a process that died left behind; a live process would hold the lock.
        pattern = f"{glob.escape(folder.name)}.tmp-*"
        for leftover in folder.parent.glob(pattern):
            shutil.rmtree(leftover)
        start = time.perf_counter()
        with reporter(self.name) as progress:
            # The state of the files before they are read.
            raw = self.raw
            self.fetch(folder.parent, progress)
            splits = self.splits(workers=workers, progress=progress)
            with explain_full_disk(folder):
                # Reading ``raw`` raises ValueError if the files have changed since they were identified.
                write(folder, splits, provenance=self.provenance, towers=self.towers, raw=raw, check=lambda: self.raw)
        seconds = time.perf_counter() - start
        size = sum(file.stat().st_size for file in folder.iterdir())
        log(f"{self.name}: {size / 1e6:.1f} MB in {seconds:.1f} s at {folder}")
