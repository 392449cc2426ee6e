"""SHA256SUMS: the sha256 of the files beside it, in the form that ``sha256sum -c`` reads.

The sum of a file that replaces another is entered before the file is renamed, and that of the other one leaves
afterwards. So at any moment, also that of a kill, the file that is there has its sum in the list. A file without an
entry, such as all those of a folder from before there were sums, is read unchecked.
"""

import contextlib
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from .atomic import MOST, Unreadable, content, opened, replacing, write

NAME = "SHA256SUMS"
MISMATCH = f"its sha256 is not the one in {NAME} beside it"
_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")
_LOOKS = 3  # at a file that another process may be replacing


class Damaged(ValueError):
    """The list itself cannot be used."""


def entries(folder: Path) -> dict[str, list[str]]:
    """Name -> sums that it may have, empty without a list. Raises Damaged."""
    found: dict[str, list[str]] = {}
    if not _there(folder / NAME):
        return found
    try:
        for line in content(folder / NAME).decode().splitlines():
            digest, name = _LINE.fullmatch(line).groups()
            found.setdefault(name, []).append(digest)
    except (Unreadable, UnicodeDecodeError, AttributeError) as error:
        reason = str(error) if isinstance(error, Unreadable) else "it is damaged"
        raise Damaged(f"{folder / NAME}: {reason}; delete it, and the files beside it are read unchecked") from None
    return found


def listing(sums: dict[str, list[str]]) -> str:
    return "".join(f"{one}  {name}\n" for name in sorted(sums) for one in sums[name])


def digest(path: Path) -> str:
    """Raises Unreadable."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """As ``disk.replacing``, with an entry in the list; one process at a time may do so in a folder. Raises Damaged."""
    with replacing(path) as part:
        yield part
        sums, new = entries(path.parent), digest(part)
        old = sums.get(path.name) or ([digest(path)] if path.is_file() else [])
        write(path.parent / NAME, listing(sums | {path.name: list(dict.fromkeys([new, *old]))}))
    write(path.parent / NAME, listing(sums | {path.name: [new]}))


def save(path: Path, text: str) -> None:
    """As ``disk.write``, with an entry in the list."""
    with replaced(path) as part:
        part.write_text(text, encoding="utf-8")


def expected(path: Path) -> bool:
    """Whether a file is there, or was: one that is gone although the list has it is a damage of its folder."""
    return _there(path) or path.name in entries(path.parent)


def read(path: Path, most: int = MOST) -> bytes:
    """All of a file, as it was written. Raises Unreadable, or Damaged."""
    for _ in range(_LOOKS):
        data, sums = content(path, most), entries(path.parent).get(path.name)
        if sums is None or hashlib.sha256(data).hexdigest() in sums:
            return data
    raise Unreadable(MISMATCH)


def check(path: Path) -> bool:
    """Whether the list has a file, of any size, which then is as it was written. Raises Unreadable, or Damaged."""
    for _ in range(_LOOKS):
        sums = entries(path.parent).get(path.name)
        if sums is None or digest(path) in sums:
            return sums is not None
    raise Unreadable(MISMATCH)


def _there(path: Path) -> bool:
    """Also for a link to nowhere."""
    return path.exists() or path.is_symlink()
