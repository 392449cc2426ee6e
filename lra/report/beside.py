"""What lies beside a record and is shown with it: curves, configuration, pictures; read without trust."""

from pathlib import Path
from typing import Any, NamedTuple

from ..disk import checksums
from ..disk.atomic import Unreadable, content
from ..runs import config_file
from . import curves

PNG = b"\x89PNG\r\n\x1a\n"


class Beside(NamedTuple):
    """Of one run: ``curves`` by column and step, ``config`` flat, ``pictures`` by the stem of their file."""

    curves: dict[str, dict[int, float]]
    config: dict[str, Any]
    pictures: dict[str, bytes]


def read(folder: Path) -> tuple[Beside, list[str]]:
    """Each part is empty where the folder never had it; a line for each file that cannot be shown."""
    told: list[str] = []
    found = {}
    for name, part in (("curves", curves.read), ("config", _config)):
        try:
            found[name] = part(folder)
        except ValueError as error:
            found[name] = {}
            told.append(str(error))
    pictures = {}
    for path in sorted((folder / "maps").glob("*.png")):
        try:
            pictures[path.stem] = _picture(path, folder)
        except Unreadable as error:
            told.append(f"{path} is not shown: {error}")
    return Beside(**found, pictures=pictures), told


def _config(folder: Path) -> dict[str, Any]:
    path = folder / config_file.NAME
    return config_file.read(path) if checksums.expected(path) else {}


def _picture(path: Path, folder: Path) -> bytes:
    """Of a run itself: who hands a page on does not mean to hand on what a link in a folder leads to."""
    if path.resolve() != folder.resolve() / "maps" / path.name:
        raise Unreadable("it is a link to another file")
    data = content(path)
    if not data.startswith(PNG):
        raise Unreadable("it is no PNG")
    return data
