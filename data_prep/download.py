"""Files from the network by TFDS's download manager, or from the disk, with their checksums."""

import dataclasses
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from lra.console import log, pip_install
from lra.data.progress import Progress
from lra.data.source import exclusive_lock

from .archive import expand, file_identity, hash_states, reject_zip, sha256, subfolders

PROGRAM = Path(__file__).with_name("tfds_download.py")
POLL = 0.2  # seconds between checks of a download
STALL = 120  # seconds after which a download that does not grow is aborted


@dataclass(frozen=True, kw_only=True)
class Download:
    """One file to download.

    Args:
        url: its http(s) address.
        sha256: its checksum, None if none is published; then the file is not checked.
        size: bytes, for the progress and the free space.
        archive: path of an existing copy, which must have the same checksum.
        substitute: ``sha256`` and the start of the checksum if it is not the official file's.
        alternatives: other ways to the same data, which the message of a failed download names.
    """

    url: str
    sha256: str | None = None
    size: int | None = None
    archive: Path | None = None
    substitute: str | None = None
    alternatives: tuple[str, ...] = ()

    def __post_init__(self):
        if not re.fullmatch(r"https?://[^@/?#:\s]+(:\d+)?(/\S*)?", self.url):
            raise ValueError("source.url must be http(s)://<host>/<path>; user and password are read from ~/.netrc")
        is_hexadecimal = self.sha256 is None or re.fullmatch("[0-9a-f]{64}", self.sha256)
        if not is_hexadecimal:
            raise ValueError(f"source.sha256 must be 64 hexadecimal digits in lower case, not {self.sha256!r}")

    def replace(
        self, *, url: str | None = None, sha256: str | None = None, archive: Path | str | None = None
    ) -> "Download":
        """Copy with the given fields replaced, None for the present ones.

        Raises:
            ValueError: a field is invalid, or the archive is a zip archive.
        """
        if archive is not None:
            reject_zip(expand(archive))
        # Another checksum means another file, whose size is unknown.
        substitute = None
        if self.sha256 is not None and sha256 is not None and sha256 != self.sha256:
            substitute = f"sha256 {sha256[:12]}"
        return dataclasses.replace(
            self,
            url=url or self.url,
            sha256=sha256 or self.sha256,
            size=self.size if sha256 in (None, self.sha256) else None,
            archive=self.archive if archive is None else expand(archive),
            substitute=substitute,
        )

    def prefer_copy_in(self, root: Path) -> "Download":
        """Copy that reads a file of the same name in a folder or below it; unchanged if there is none."""
        for folder in subfolders(expand(root)):
            if (folder / self.file_name).is_file():
                return dataclasses.replace(self, archive=folder / self.file_name)
        return self

    def stamp(self) -> str | None:
        """The state of ``archive``; without one, the address. None if it has no checksum and does not exist."""
        # A checksum is part of it: data that were prepared without it may come from another file.
        suffix = "" if self.sha256 is None else f" sha256 {self.sha256}"
        if self.archive is None:
            return self.url + suffix
        if not self.archive.is_file():
            return suffix or None
        return hash_states([("archive", self.archive.stat())]) + suffix

    def location(self) -> str:
        """The address, or the path of ``archive``."""
        return self.url if self.archive is None else str(self.archive.absolute())

    @property
    def identity(self) -> dict:
        """The identity of the file among a source's arguments, without the address if there is a checksum."""
        if self.sha256 is not None:
            return {"sha256": self.sha256}
        return {"url": self.url} if self.archive is None else {"archive": file_identity(self.archive)}

    @property
    def file_name(self) -> str:
        """The last part of the address."""
        return Path(urlsplit(self.url).path).name or "download"

    def fetch(self, folder: Path, progress: Progress) -> Path:
        """Get the file and check it; of several processes only one downloads.

        Args:
            folder: folder in which downloads are kept.
            progress: reports the bytes.

        Returns:
            The path of the file, or ``archive``.

        Raises:
            ValueError: ``archive`` is not a file, the checksum is wrong, the download failed or stalled, or the folder
                is full or cannot be written. A failed download leaves nothing behind.
        """
        # A copy that the user has is read in place.
        if self.archive is not None:
            self.check(self.archive, progress)
            return self.archive

        # The name in the folder of downloads: by checksum, or by address without a known checksum.
        key = hashlib.sha256(self.url.encode()).hexdigest() if self.sha256 is None else self.sha256
        path = folder / f"{key[:8]}-{self.file_name}"
        with exclusive_lock(path):
            if path.exists():
                if self._wrong_checksum(path, progress) is None:
                    return path
                log(f"{path} has changed since it was downloaded, downloading it again")
                path.unlink()
            # Remove the leftovers of a process that died; a live one would hold the lock.
            for leftover in folder.glob(f"{path.name}.tmp-*"):
                shutil.rmtree(leftover)

            # Download into a folder next to it and move the file once it is checked.
            work = folder / f"{path.name}.tmp-{os.getpid()}"
            try:
                work.mkdir()
                loaded = self._load(work, progress)
                wrong = self._wrong_checksum(loaded, progress)
                if wrong is not None:
                    size = f"{loaded.stat().st_size:,} bytes"
                    raise self._failure(f"it sent {size} with sha256 {wrong} instead of {self.sha256}")
                loaded.replace(path)
                if self.sha256 is None:
                    log(f"{path} was not verified: no checksum is published for it")
            finally:
                shutil.rmtree(work, ignore_errors=True)
        return path

    def check(self, archive: Path, progress: Progress | None = None) -> None:
        """Raise ValueError unless a path of the user is the file with the checksum."""
        if archive.is_dir():
            inspection = shlex.join(["lra", "data", "inspect", str(archive)])
            remedy = f"{inspection} describes what it holds; the official file is {self.file_name}"
            raise ValueError(f"{archive} is not a folder in a layout that source.archive reads: {remedy}")
        if not archive.is_file():
            raise ValueError(f"{archive} is not a file: source.archive must be {self.file_name}")
        wrong = self._wrong_checksum(archive, progress)
        if wrong is not None:
            remedy = f"get {self.file_name} from {self.url} or, to use this file, add source.sha256={wrong}"
            raise ValueError(f"{archive} has sha256 {wrong} instead of {self.sha256}: {remedy}")

    def _wrong_checksum(self, path: Path, progress: Progress | None) -> str | None:
        """The checksum of a file if it is wrong, else None."""
        if self.sha256 is None:
            return None
        digest = sha256(path, progress)
        return None if digest == self.sha256 else digest

    def _failure(self, reason: str) -> ValueError:
        remedies = [
            f"source.archive=<path of {self.file_name}, copied from elsewhere>",
            "source.url=<address of a mirror>",
            *self.alternatives,
        ]
        remedy = f"try another way: {'; '.join(remedies)}"
        return ValueError(f"cannot download {self.file_name} from {self.url}: {reason}; {remedy}")

    def _load(self, work: Path, progress: Progress) -> Path:
        """Download into the folder ``work`` in another process. Raises ValueError on failure."""
        if importlib.util.find_spec("tensorflow_datasets") is None:
            raise self._failure(f"tensorflow-datasets is not installed: {pip_install('tfds')}")
        free = shutil.disk_usage(work).free
        if self.size is not None and free < self.size:
            raise self._failure(f"it has {self.size / 1e6:,.0f} MB, {work.parent} has room for {free / 1e6:,.0f} MB")
        total = None if self.size is None else round(self.size / 1e6)
        # -P: the modules next to the program would hide others of the same names, such as inspect.
        command = [sys.executable, "-P", str(PROGRAM), self.url, str(work)]
        pipe = subprocess.PIPE
        # Report the size while it grows; the program has no report that can be read.
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
            try:
                size = 0
                last_growth = time.monotonic()
                while child.poll() is None:
                    time.sleep(POLL)
                    before = size
                    size = _size(work)
                    if size > before:
                        last_growth = time.monotonic()
                    progress("download, MB", round(size / 1e6), total)
                    # The download manager itself waits without a limit.
                    if time.monotonic() - last_growth > STALL:
                        raise self._failure(f"no data arrived for {STALL} s after {size / 1e6:,.1f} MB")
            finally:
                child.kill()
            output, errors = child.communicate()
            if child.returncode == 0:
                return Path(output.splitlines()[-1])
            # The last line of an error names it.
            lines = errors.splitlines()
            raise self._failure(lines[-1] if lines else "its process ended")


def _size(folder: Path) -> int:
    """Count the bytes in a folder in which another process creates, renames and removes files."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(where, name)).st_size
            except FileNotFoundError:
                continue
    return total
