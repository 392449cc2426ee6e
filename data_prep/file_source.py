"""Sources that read files of the user: the content of the files identifies the data, wherever the files are."""

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from lra.console import log
from lra.data.progress import Progress
from lra.data.source import Source
from lra.data.split import Examples
from lra.data.store import StoreError, raw_files, read_provenance
from lra.options import flatten

from .archive import expand


class PreparedData(NamedTuple):
    """A prepared data set: its folder, the identity of the files that it was read from, their path and state."""

    folder: Path
    content: dict[str, Any]
    raw: dict[str, Any]


class FileSource(Source):
    """A source whose arguments are choices and the content of files.

    Hashing all files may take minutes, so their content is identified once. Prepared data remember a stamp of the
    files: as long as the stamp is the same, the content is the one that was stored. If the files do not exist any more,
    the prepared data are found by the other arguments; if a run is restored, by the provenance in its config.yaml.

    Attributes of a class: ``content_keys`` names the arguments that identify the files.
    """

    content_keys: ClassVar[tuple[str, ...]]
    _content: dict[str, Any] | None = None
    # Stamp of the files before their content was identified.
    _stamp: str | None = None

    @property
    @abstractmethod
    def choices(self) -> dict[str, Any]:
        """The arguments that do not depend on files."""

    @property
    def has_files(self) -> bool:
        """Whether files are read, for sources that generate their data otherwise."""
        return True

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """Identify the files: a value for each key of ``content_keys``. Raises ValueError if a file is missing."""

    @abstractmethod
    def stamp(self) -> str | None:
        """Summarise the state of the files without reading them; None if they do not exist."""

    @abstractmethod
    def location(self) -> str:
        """The path or paths of the files, for messages and to find data that were prepared from them."""

    @property
    def arguments(self) -> dict[str, Any]:
        if not (self.has_files or self._is_recorded()):
            return self.choices
        # Finding the content may read all files, so it is done once.
        if self._content is None:
            self._content = self._find_content()
        return {**self.choices, **self._content}

    @property
    def raw(self) -> dict[str, Any] | None:
        """The path and the state of the files. Raises ValueError if they changed after their content was identified."""
        if not self.has_files:
            return None
        # Other content must not be stored under the checksum of the previous one.
        current = self.stamp()
        if self._stamp is not None and current != self._stamp:
            reason = "the files have changed since their checksum was computed; run the command again"
            raise ValueError(f"{self.location()}: {reason}")
        return {"path": self.location(), "stamp": current}

    def set_root(self, root: Path | str) -> Path:
        # Another folder of data may hold data that were prepared from the same files.
        if expand(root) != self.root:
            self._content = None
        return super().set_root(root)

    def load(self, root: Path | str) -> Mapping[str, Examples]:
        try:
            return super().load(root)
        except StoreError as error:
            # Data that differ only in their files are found by the option that names these files.
            prepared = [] if self.folder(root).exists() else list(self._prepared())
            paths = [str(data.raw["path"]) for data in prepared if "path" in data.raw]
            if not paths:
                raise
            remedy = f"to use the data prepared from {', '.join(paths)}, repeat the options that prepared them"
            raise StoreError(f"{error}; {remedy}") from None

    def _is_recorded(self) -> bool:
        """Whether a restored run was trained on files that only its recorded provenance identifies."""
        recorded = self.recorded or {}
        checksum = self.download.sha256 if self.download is not None else None
        for key in self.content_keys:
            # A file with this checksum needs no search.
            if checksum is not None and recorded.get(f"{key}.sha256") == checksum:
                return False
        names = {key.partition(".")[0] for key in recorded}
        return not names.isdisjoint(self.content_keys)

    def _find_content(self) -> dict[str, Any]:
        if self._is_recorded():
            return self._recorded_content()
        # Data prepared from files with the same stamp have the same content.
        current = self.stamp()
        self._stamp = current
        prepared = list(self._prepared())
        if current is not None:
            for data in prepared:
                if data.raw.get("stamp") == current:
                    return data.content
        elif prepared:
            return self._content_without_files(prepared)
        return self.content()

    def _recorded_content(self) -> dict[str, Any]:
        """The content that a restored run was trained on, from the prepared data with its provenance."""
        recorded = dict(self.recorded or {})
        for folder in self._folders():
            with suppress(StoreError):
                provenance = read_provenance(folder)
                if flatten(provenance) == recorded:
                    return {key: provenance[key] for key in self.content_keys}
        # No data set has the recorded provenance: the files are needed again.
        # An official archive is a release too, so the release alone is enough.
        keys = [key for key in self.locations if key not in ("url", "archive")] or ["archive"]
        path = " ".join(f"source.{key}=<path>" for key in keys)
        command = f"{self.command or f'lra data task={self.name}'} {path}"
        raise StoreError(f"the data of this run are not in {self.root}; to make them from the same files: {command}")

    def _content_without_files(self, prepared: list[PreparedData]) -> dict[str, Any]:
        """The content of the only data set prepared from these files, which do not exist any more."""
        # A data set that was prepared from this path is preferred.
        same_path = [data for data in prepared if data.raw.get("path") == self.location()]
        candidates = same_path if same_path else prepared
        if len(candidates) > 1:
            folders = ", ".join(str(data.folder) for data in candidates)
            raise StoreError(
                f"{self.location()} does not exist, and several data sets may have been prepared from it: {folders}; "
                "restore the files or delete the other data sets"
            )
        (data,) = candidates
        log(f"{self.name}: {self.location()} does not exist; using the data prepared at {data.folder}")
        return data.content

    def _folders(self) -> list[Path]:
        return sorted(self.root.glob(f"{self.name}-????????")) if self.root is not None else []

    def _prepared(self) -> Iterator[PreparedData]:
        """Yield the prepared data sets that differ in nothing but their files."""
        expected = {"name": self.name, "version": self.version, **self.choices}
        for folder in self._folders():
            with suppress(StoreError):
                provenance = read_provenance(folder)
                # The provenance without what the files decide.
                choices = {key: value for key, value in provenance.items() if key not in self.content_keys}
                if choices == expected and all(key in provenance for key in self.content_keys):
                    content = {key: provenance[key] for key in self.content_keys}
                    yield PreparedData(folder, content, raw_files(folder))


class Files(Protocol):
    """The reader of the files of a source."""

    @property
    def path(self) -> Path: ...

    @property
    def identity(self) -> dict[str, Any]: ...

    def stamp(self) -> str | None: ...


class ReleaseSource(FileSource):
    """A source that generates its data, unless it reads official files or a copy in a format of ``data_prep.formats``.

    Attributes of an object: ``release`` is the reader of the files, None if the data are generated.
    """

    locations = ("release",)
    content_keys = ("release",)
    release: Files | None

    @property
    def has_files(self) -> bool:
        return self.release is not None

    def _files(self) -> Files:
        if self.release is None:
            raise ValueError(f"{self.name} is generated and reads no files")
        return self.release

    def content(self) -> dict[str, Any]:
        return {"release": self._files().identity}

    def stamp(self) -> str | None:
        return self._files().stamp()

    def location(self) -> str:
        return str(self._files().path.absolute())


class CopySource(FileSource):
    """A source that reads an official archive, or a copy of it in a format of ``data_prep.formats``.

    Attributes of an object: ``copy`` is the reader of the copy, None for the archive, which ``download`` gets and
    whose path is ``path``.
    """

    content_keys = ("file",)
    copy: Any
    path: Path

    @property
    def _is_drawn(self) -> bool:
        """Whether examples are drawn from the splits of a copy.

        Version 0.2.0 took the first ones; the mark in the content keeps both apart.
        """
        has_val = getattr(self.copy, "has_val", False)
        return has_val and any(self.choices[split] is not None for split in ("train", "val", "test"))

    def content(self) -> dict[str, Any]:
        # The official data may be prepared already; they must not stand in for another file.
        archive = self.download.archive
        if self.copy is None and archive is not None and archive.exists():
            self.download.check(archive)
        identity = (self.copy or self.download).identity
        if self._is_drawn:
            identity = identity | {"drawn": True}
        return {"file": identity}

    @property
    def substitute(self) -> str | None:
        identity = self.arguments["file"]
        # Only the checksum of an archive can be compared with the official one.
        if identity == {"sha256": self.download.sha256}:
            return super().substitute
        text = json.dumps(identity, sort_keys=True)
        return f"copy {hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def stamp(self) -> str | None:
        stamp = (self.copy or self.download).stamp()
        return f"{stamp} drawn" if self._is_drawn else stamp

    def location(self) -> str:
        return self.download.location() if self.copy is None else str(self.copy.path.absolute())

    def _find_content(self) -> dict[str, Any]:
        # A copy that does not exist any more has no reader: find the data that were prepared from its path, or from the
        # folder in it that held the files.
        path = self.download.archive
        if self.copy is None and path is not None and not path.exists() and not self._is_recorded():
            path = path.absolute()
            prepared = [data for data in self._prepared() if path in _path_and_parent(data.raw.get("path"))]
            if prepared:
                return self._content_without_files(prepared)
            sha256 = self.download.sha256
            log(f"{self.name}: {path} does not exist; looking for data of the file with sha256 {sha256}")
        return super()._find_content()

    def fetch(self, root: Path, progress: Progress) -> None:
        if self.copy is None:
            self.path = self.download.fetch(root / "downloads", progress)


def _path_and_parent(path: str | None) -> tuple[Path, ...]:
    return () if path is None else (Path(path), Path(path).parent)
