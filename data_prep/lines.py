"""Lines of text files from elsewhere: harmless differences are tolerated, everything else is named."""

import gzip
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, cast

from lra.data.progress import DELAY, Progress, ReadMeter, hash_file, reporter

from .archive import reading

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# The first bytes, in lower case, of files that are often found instead of the expected one, and the remedy for each.
IMPOSTORS = {
    b"<!doctype html": "is a web page (HTML), not the file: get it again from another address",
    b"<html": "is a web page (HTML), not the file: get it again from another address",
    b"<?xml": "is an XML page, as servers send for an error: get it again from another address",
    b"version https://git-lfs": "is a pointer of Git LFS, not the file: run git lfs pull where it comes from",
    b"\x1f\x8b": "is compressed by gzip: rename it to end in .gz",
    b"pk\x03\x04": "is a zip archive: unpack it first",
    b"\xff\xfe": "is UTF-16 text: convert it to UTF-8",
    b"\xfe\xff": "is UTF-16 text: convert it to UTF-8",
}


def impostor(start: bytes) -> str | None:
    """Return what a file is instead of a text table, judged by its first bytes; None if they look like text."""
    start = start.removeprefix(BYTE_ORDER_MARK).lstrip()[:32].lower()
    for magic, description in IMPOSTORS.items():
        if start.startswith(magic):
            return description
    return None


def metered(lines: Iterable[bytes], meter: ReadMeter) -> Iterator[bytes]:
    """Pass lines on and count their bytes."""
    for line in lines:
        meter.add(len(line))
        yield line


def open_plain(path: Path) -> IO[bytes]:
    """Open a file, decompressed if its name ends in .gz."""
    if path.suffix == ".gz":
        # GzipFile has the methods of IO, although its stubs do not declare the base class.
        return cast(IO[bytes], gzip.open(path, "rb"))
    return open(path, "rb")


def content_digest(path: Path) -> str:
    """Hash the content of a file, decompressed if its name ends in .gz. Raises ValueError if it is damaged."""
    with ExitStack() as stack:
        stack.enter_context(reading(path))
        file = stack.enter_context(open_plain(path))
        progress = stack.enter_context(reporter(path.name, DELAY))
        meter = stack.enter_context(ReadMeter(str(path), progress, "checksum of the content"))
        return hash_file(file, meter)


@contextmanager
def open_lines(path: Path, progress: Progress, work: str) -> Iterator[Iterator[bytes]]:
    """Open a text file, compressed or not, as lines in constant memory, whose megabytes are reported.

    Args:
        path: path of the file.
        progress: reports the megabytes.
        work: name of the work for ``progress``.

    Raises:
        ValueError: the compressed file is damaged.
    """
    # The size of what is inside a compressed file is unknown.
    total = None if path.suffix == ".gz" else os.path.getsize(path)
    meter = ReadMeter(str(path), progress, work, total)
    with reading(path), open_plain(path) as file, meter:
        yield metered(file, meter)


def text_lines(lines: Iterable[bytes], name: str) -> Iterator[tuple[int, bytes]]:
    """Number the lines of a text file from 1 and remove their ends.

    A byte order mark, blank lines at the end of the file and line ends of Windows are tolerated.

    Args:
        lines: raw lines, such as an open file.
        name: name of the file, for messages.

    Yields:
        The number of a line and the line without its end; a blank line is empty.

    Raises:
        ValueError: the file is empty or something else than text.
    """
    blank: list[int] = []
    is_empty = True
    for number, line in enumerate(lines, start=1):
        if number == 1:
            description = impostor(line)
            if description is not None:
                raise ValueError(f"{name} {description}")
            line = line.removeprefix(BYTE_ORDER_MARK)
        line = line.rstrip(b"\r\n")
        # A blank line counts only if another line follows: the last lines of an edited file may be blank.
        if not line.strip():
            blank.append(number)
            continue
        for earlier in blank:
            yield earlier, b""
        blank.clear()
        is_empty = False
        yield number, line
    if is_empty:
        raise ValueError(f"{name} is empty")
