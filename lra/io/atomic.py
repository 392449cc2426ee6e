"""Replace files atomically, and read files that may be missing or damaged."""

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

# Errors of a full disk or quota, and of a limit on the size of a file.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Errors of a disk that can be fixed without loss, so that the same command can be repeated.
FIXABLE = (*NO_ROOM, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE)


class Unreadable(ValueError):
    """The reason why a file cannot be used; the caller adds the path and the remedy."""


def write(path: Path, text: str) -> None:
    """Replace a file atomically: a crash or a full disk leaves the old one in place."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Replace a file atomically by the file that the block writes to a temporary path.

    At the end of the block the temporary file is synced to the disk and renamed to ``path``. An OSError that names no
    file (as on a full disk) or two files (a failed copy or rename) gets the name of ``path``.

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
        # A failed copy names its source first.
        if error.filename is None or error.filename2 is not None:
            error.filename = str(path)
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
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading.

    Raises:
        Unreadable: it is missing or cannot be opened. Errors of the block stay as they are.
    """
    with contextlib.ExitStack() as stack:
        with _read_errors():
            file = stack.enter_context(open(path, "rb"))
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


def content(path: Path) -> bytes:
    """Read a file. Raises Unreadable."""
    with _read_errors():
        return path.read_bytes()


def digest(path: Path) -> str:
    """The sha256 of a file in hexadecimal digits. Raises Unreadable."""
    with _read_errors(), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def copy(source: Path, target: Path, check: Callable[[Path], object]) -> None:
    """Copy a file.

    Args:
        source: path of the file.
        target: path of the copy.
        check: called with the copy before it is renamed to ``target``; raises an error to reject it.

    Raises:
        Unreadable: the source is missing or cannot be opened.
        OSError: the source cannot be read to its end, or the copy cannot be written; it names ``target`` or the
            temporary file next to it.
    """
    with replacing(target) as part, opened(source) as file:
        with open(part, "wb") as into:
            shutil.copyfileobj(file, into)
        check(part)


@contextlib.contextmanager
def explain_disk_errors(path: Path) -> Iterator[None]:
    """Turn an OSError that a user can fix (``FIXABLE``) into a ValueError with the file and the remedy.

    Args:
        path: path for the message if the error names no file.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FIXABLE:
            raise
        room = "make room, then " if error.errno in NO_ROOM else ""
        reason = f"{error.strerror}; {room}the same command resumes from the last checkpoint"
        # A failing disk and a file system of a network give these errors when a file is read, too.
        action = "read or written" if error.errno in (errno.EIO, errno.ESTALE) else "written"
        raise ValueError(f"{error.filename or path} cannot be {action}: {reason}") from error
