"""Replace files atomically, and read files that may be damaged or of another kind."""

import contextlib
import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any

# Errors of a full disk or quota, and of a limit on the size of a file.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Largest file in bytes that ``content`` reads by default.
MOST = 2**26


class Unreadable(ValueError):
    """The reason why a file cannot be used; the caller adds the path and the remedy."""


class _CheckedFile(FileIO):
    """A file whose read errors are Unreadable, so that they differ from write errors of the same block."""

    def readinto(self, buffer: Any, /) -> int | None:
        with _read_errors():
            return super().readinto(buffer)

    def readall(self) -> bytes:
        with _read_errors():
            return super().readall()


def write(path: Path, text: str) -> None:
    """Replace a file atomically: a crash or a full disk leaves the old one in place."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Replace a file atomically by the file that the block writes to a temporary path.

    At the end of the block the temporary file is synced to the disk and renamed to ``path``. An OSError that names no
    file, as on a full disk, gets the name of ``path``.

    Yields:
        The temporary path, in the folder of ``path``.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        # The contents must be on the disk before the name, and the name before the caller continues.
        sync(part)
        part.replace(path)
        sync(path.parent)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        part.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file for reading.

    Raises:
        Unreadable: it is missing, not a regular file, or cannot be read. A FIFO is rejected without waiting for it.
            Other errors of the block, such as a full disk that it writes to, stay as they are.
    """
    with _read_errors():
        # Without O_NONBLOCK, opening a FIFO would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise Unreadable("it is a folder" if stat.S_ISDIR(mode) else "it is not a regular file")
    raw: Any = _CheckedFile(descriptor)
    with BufferedReader(raw) as file:
        yield file


@contextlib.contextmanager
def _read_errors() -> Iterator[None]:
    """Turn errors of opening or reading a file into Unreadable."""
    try:
        yield
    except FileNotFoundError:
        raise Unreadable("it is missing") from None
    except OSError as error:
        raise Unreadable(f"it cannot be read: {error.strerror}") from None


def digest(path: Path) -> str:
    """The sha256 of a regular file in hexadecimal digits. Raises Unreadable."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def copy(source: Path, target: Path, check: Callable[[Path], object]) -> None:
    """Copy a regular file.

    Args:
        source: path of the file.
        target: path of the copy.
        check: called with the copy before it is renamed to ``target``; raises an error to reject it.

    Raises:
        Unreadable: the source is missing, not a regular file, or cannot be read.
        OSError: the copy cannot be written; it names ``target``.
    """
    with replacing(target) as part, opened(source) as file:
        with open(part, "wb") as into:
            shutil.copyfileobj(file, into)
        check(part)


def content(path: Path, max_bytes: int = MOST) -> bytes:
    """Read a regular file. Raises Unreadable, also for one of more than ``max_bytes`` bytes."""
    with opened(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise Unreadable(f"it has more than {max_bytes:,} bytes")
    return data
