"""Archives read as streams, without unpacking them to the disk."""

import hashlib
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from posixpath import normpath
from typing import Any, BinaryIO

from lra.data.source import Progress

ENDS = 2**24  # bytes at either end of a file that identify it


def fingerprint(path: Path) -> dict[str, Any]:
    """Identify a file by its size and a sha256: of the whole file up to twice ENDS bytes, else of its two ends.

    It is computed at every start of a run, for which the minute that 10 GB take would be too long.

    Raises:
        ValueError: the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            sha = hashlib.sha256(file.read(ENDS))
            file.seek(max(ENDS, size - ENDS))
            sha.update(file.read(ENDS))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    return {"bytes": size, "sha256": sha.hexdigest()}


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any error of a damaged compressed file or archive in the block into a ValueError of one line."""
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the system's, not a decompressor's
            raise
        reason = str(error).partition(":\n")[0]  # tarfile appends a line for each compression that it tried
        raise ValueError(f"{path} is damaged or not an archive ({reason}): get it again") from None


def _check(member: tarfile.TarInfo, path: Path) -> None:
    """Raise ValueError for a member that occurs only in hostile or broken archives."""
    if member.name.startswith("/") or ".." in member.name.split("/"):
        raise ValueError(f"{path} is not to be trusted: its member {member.name!r} lies outside of it")
    if not (member.isdir() or member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)):
        kind = "a link" if member.issym() or member.islnk() else "not a plain file"
        raise ValueError(f"{path} is not to be trusted: its member {member.name!r} is {kind}")


def members(path: Path, wanted: Callable[[str], Any], progress: Progress) -> Iterator[tuple[str, BinaryIO]]:
    """Read files of a tar archive, compressed or not, in its order and in constant memory.

    Args:
        path: path of the archive.
        wanted: true for the name of a file to read.
        progress: reports the bytes read.

    Yields:
        Name and content of each wanted file; the content is readable until the next is requested. Code that reads it
        belongs into a block of `reading`.

    Raises:
        ValueError: the archive is damaged, or it has members outside of it, links or devices.
    """
    with reading(path), open(path, "rb") as raw, tarfile.open(fileobj=raw) as tar:
        total, done = round(os.fstat(raw.fileno()).st_size / 1e6), 0
        while (member := tar.next()) is not None:
            _check(member, path)
            name = normpath(member.name)
            if not member.isdir() and wanted(name):
                yield name, tar.extractfile(member)
            tar.members.clear()  # tarfile keeps 1 KB for each of the release's millions of files
            if (now := round(raw.tell() / 1e6)) > done:
                done = now
                progress("archive, MB", done, total)
        while tar.fileobj.read(2**20):  # the compression's own checksum is at the end, after the last member
            pass
