"""The files beside a record that are shown with it: curves, configuration, maps; read without trust."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ..disk import checksums
from ..disk.atomic import Unreadable, content
from ..runs import config_file, record

PNG = b"\x89PNG\r\n\x1a\n"


class Artifacts(NamedTuple):
    """Of one run: ``curves`` by column and step, ``config`` flat, ``pictures`` by the stem of their file."""

    curves: dict[str, dict[int, float]]
    config: dict[str, Any]
    pictures: dict[str, bytes]


def read(folder: Path) -> tuple[Artifacts, list[str]]:
    """Each part is empty if the folder never had it; a line for each file that cannot be shown."""
    lines: list[str] = []

    def part(load: Callable[[Path], dict]) -> dict:
        try:
            return load(folder)
        except ValueError as error:
            lines.append(str(error))
            return {}

    pictures = {}
    curves, config = part(_curves), part(_config)
    for path in sorted((folder / "maps").glob("*.png")):
        try:
            pictures[path.stem] = _picture(path, folder)
        except Unreadable as error:
            lines.append(f"{path} is not shown: {error}")
    return Artifacts(curves, config, pictures), lines


def _curves(folder: Path) -> dict[str, dict[int, float]]:
    if not checksums.expected(folder / record.METRICS):
        return {}
    try:
        rows = record.evaluations(folder)
    except ValueError as error:
        raise ValueError(f"{error}, no curve is drawn of it") from None
    names = [name for name in (rows[0] if rows else {}) if name != "step"]
    return {name: {int(row["step"]): row[name] for row in rows} for name in names}


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
