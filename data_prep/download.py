"""Files from the network by TFDS's download manager, or from the disk, with their checksums."""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from lra.console import log, pip_install
from lra.data.source import Progress, exclusive_lock

from .archive import fingerprint

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
        substitute: the start of the checksum if this file is read in place of the official one, which has another.
    """

    url: str
    sha256: str | None = None
    size: int | None = None
    archive: Path | None = None
    substitute: str | None = None

    def __post_init__(self):
        if not re.fullmatch(r"https?://[^@/?#:\s]+(:\d+)?(/\S*)?", self.url):
            raise ValueError("source.url must be http(s)://<host>/<path>; user and password are read from ~/.netrc")
        if self.sha256 is not None and (len(self.sha256) != 64 or set(self.sha256) - set("0123456789abcdef")):
            raise ValueError(f"source.sha256 must be 64 hexadecimal digits in lower case, not {self.sha256!r}")

    def but(
        self, *, url: str | None = None, sha256: str | None = None, archive: Path | str | None = None
    ) -> "Download":
        """Copy with the given fields replaced; the size of another file is unknown."""
        other = self.sha256 is not None and sha256 not in (None, self.sha256)
        size = self.size if sha256 in (None, self.sha256) else None
        archive = self.archive if archive is None else Path(archive)
        changed = {"url": url or self.url, "sha256": sha256 or self.sha256, "size": size, "archive": archive}
        return replace(self, **changed, substitute=f"sha256 {sha256[:12]}" if other else None)

    @property
    def identity(self) -> dict:
        """The identity of the file among a source's arguments, without the address if there is a checksum."""
        if self.sha256 is not None:
            return {"sha256": self.sha256}
        return {"url": self.url} if self.archive is None else {"archive": fingerprint(self.archive)}

    @property
    def file(self) -> str:
        return Path(urlsplit(self.url).path).name or "download"

    def fetch(self, folder: Path, progress: Progress) -> Path:
        """Get the file and check it; of several processes only one downloads.

        Args:
            folder: folder in which downloads are kept.
            progress: reports the bytes.

        Returns:
            The path of the file, or `archive`.

        Raises:
            ValueError: the checksum is wrong, the download failed or stalled, or the disk is full. Nothing is left
                behind.
        """
        if self.archive is not None:
            if not self.archive.is_file():
                raise ValueError(f"{self.archive} is not a file: source.archive must be {self.file}")
            if (wrong := self._wrong(self.archive)) is not None:
                remedy = f"get {self.file} from {self.url} or, if another file is meant, add source.sha256={wrong}"
                raise ValueError(f"{self.archive} has sha256 {wrong} instead of {self.sha256}: {remedy}")
            return self.archive
        key = hashlib.sha256(self.url.encode()).hexdigest() if self.sha256 is None else self.sha256
        path = folder / f"{key[:8]}-{self.file}"
        with exclusive_lock(path):
            if path.exists():
                if self._wrong(path) is None:
                    return path
                log(f"{path} has changed since it was downloaded, downloading it again")
                path.unlink()
            for left in folder.glob(f"{path.name}.tmp-*"):  # its process died: whoever works holds the lock
                shutil.rmtree(left)
            work = folder / f"{path.name}.tmp-{os.getpid()}"
            try:
                work.mkdir()
                loaded = self._load(work, progress)
                if (wrong := self._wrong(loaded)) is not None:
                    size = f"{loaded.stat().st_size:,} bytes"
                    raise self._failure(f"it sent {size} with sha256 {wrong} instead of {self.sha256}")
                loaded.replace(path)
                if self.sha256 is None:
                    log(f"{path} is not checked, since no checksum of it is published")
            finally:
                shutil.rmtree(work, ignore_errors=True)
        return path

    def _wrong(self, path: Path) -> str | None:
        """The checksum of a file if it is wrong, else None."""
        if self.sha256 is None:
            return None
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return None if digest == self.sha256 else digest

    def _failure(self, reason: str) -> ValueError:
        remedy = "get the file another way and add source.archive=<path>, or name a mirror by source.url="
        return ValueError(f"cannot download {self.file} from {self.url}: {reason}; {remedy}")

    def _load(self, work: Path, progress: Progress) -> Path:
        """Download into the folder `work` in another process. Raises ValueError on failure."""
        if importlib.util.find_spec("tensorflow_datasets") is None:
            raise self._failure(f"tensorflow-datasets is not installed: {pip_install('tfds')}")
        free = shutil.disk_usage(work).free
        if self.size is not None and free < self.size:
            raise self._failure(f"it has {self.size / 1e6:,.0f} MB, {work.parent} has room for {free / 1e6:,.0f} MB")
        total = None if self.size is None else round(self.size / 1e6)
        # -P: the modules beside the program would hide packages of the same names.
        command = [sys.executable, "-P", str(PROGRAM), self.url, str(work)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
            try:
                size, grown = 0, time.monotonic()
                while child.poll() is None:
                    time.sleep(POLL)
                    before, size = size, _size(work)
                    now = time.monotonic()
                    grown = now if size > before else grown
                    progress("download, MB", round(size / 1e6), total)
                    if now - grown > STALL:
                        raise self._failure(f"nothing has come for {STALL} s after {size / 1e6:,.1f} MB")
            finally:
                child.kill()
            if child.returncode == 0:
                return Path(child.stdout.read().splitlines()[-1])
            raise self._failure((child.stderr.read().splitlines() or ["its process ended"])[-1])


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
