"""SHA256SUMS: the sha256 of the files beside it, in the format of ``sha256sum -c``.

When a file is replaced, the new sum is entered before the rename and the old one removed after it, so that the sum of
the present file is listed at any moment, even after a kill. A file without an entry is read unchecked, as are all files
of a folder that is older than the list.
"""

import contextlib
import hashlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from .atomic import MOST, Unreadable, content, opened, replacing, write

NAME = "SHA256SUMS"
MISMATCH = f"its sha256 is not the one in {NAME} beside it"
_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")
_ATTEMPTS = 3  # to read a file that another process may be replacing


class Damaged(ValueError):
    """The list itself cannot be used."""


def entries(folder: Path) -> dict[str, list[str]]:
    """Read the list: the valid sums of each file by its name, empty without a list. Raises Damaged."""
    sums: dict[str, list[str]] = {}
    if not _exists(folder / NAME):
        return sums
    try:
        for line in content(folder / NAME).decode().splitlines():
            digest, name = _LINE.fullmatch(line).groups()
            sums.setdefault(name, []).append(digest)
    except (Unreadable, UnicodeDecodeError, AttributeError) as error:
        reason = str(error) if isinstance(error, Unreadable) else "it is damaged"
        raise Damaged(f"{folder / NAME}: {reason}; delete it, and the files beside it are read unchecked") from None
    return sums


def listing(sums: dict[str, list[str]]) -> str:
    """Format sums by name as the text of the list."""
    return "".join(f"{one}  {name}\n" for name in sorted(sums) for one in sums[name])


def digest(path: Path) -> str:
    """The sha256 of a file in hexadecimal digits. Raises Unreadable."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Replace a file as ``atomic.replacing`` does and enter its sum in the list.

    Only one process at a time may do so in a folder.

    Raises:
        Damaged: the list cannot be read.
    """
    with replacing(path) as part:
        yield part
        sums, new = entries(path.parent), digest(part)
        old = sums.get(path.name) or ([digest(path)] if path.is_file() else [])
        write(path.parent / NAME, listing(sums | {path.name: list(dict.fromkeys([new, *old]))}))
    write(path.parent / NAME, listing(sums | {path.name: [new]}))


def save(path: Path, text: str) -> None:
    """Replace a file by a text as ``atomic.write`` does and enter its sum in the list."""
    with replaced(path) as part:
        part.write_text(text, encoding="utf-8")


def copy(source: Path, target: Path) -> None:
    """Copy a regular file and verify the sum of the copy, if the source is listed. Raises Unreadable or Damaged."""
    sums = entries(source.parent).get(source.name)
    with replaced(target) as part, opened(source) as file:
        with open(part, "wb") as into:
            shutil.copyfileobj(file, into)
        if sums is not None and digest(part) not in sums:
            raise Unreadable(f"{source}: {MISMATCH}")


def expected(path: Path) -> bool:
    """Whether a file exists or is listed; a listed file that is missing is damage of its folder."""
    return _exists(path) or path.name in entries(path.parent)


def read(path: Path, most: int = MOST) -> bytes:
    """Read a file and verify its sum, if it has one. Raises Unreadable or Damaged."""
    for _ in range(_ATTEMPTS):
        data, sums = content(path, most), entries(path.parent).get(path.name)
        if sums is None or hashlib.sha256(data).hexdigest() in sums:
            return data
    raise Unreadable(MISMATCH)


def check(path: Path) -> bool:
    """Verify the sum of a file of any size; False if the list has none. Raises Unreadable or Damaged."""
    for _ in range(_ATTEMPTS):
        sums = entries(path.parent).get(path.name)
        if sums is None or digest(path) in sums:
            return sums is not None
    raise Unreadable(MISMATCH)


def _exists(path: Path) -> bool:
    """Whether a path exists; a dangling link does."""
    return path.exists() or path.is_symlink()
