"""The files beside a record that the report shows: curves, configuration and maps, read as untrusted input."""

from pathlib import Path
from typing import Any, NamedTuple

from ..disk.atomic import Unreadable, content
from ..runs import reader

PNG = b"\x89PNG\r\n\x1a\n"


class Artifacts(NamedTuple):
    """The files of one run: ``curves`` by column and step, ``config`` flat, ``pictures`` by the stem of their file."""

    curves: dict[str, dict[int, float]]
    config: dict[str, Any]
    pictures: dict[str, bytes]


def read(folder: Path) -> tuple[Artifacts, list[str]]:
    """Read the files of a run.

    Args:
        folder: folder of the seed.

    Returns:
        The files, each part empty if the folder never had it, and one line for each file that cannot be shown.
    """
    made, lines = Artifacts({}, {}, {}), []
    for part, load in ((made.curves, reader.read_curves), (made.config, reader.read_choices)):
        try:
            part |= load(folder)
        except ValueError as error:
            lines.append(str(error))
    for path in sorted((folder / "maps").glob("*.png")):
        try:
            if path.resolve() != folder.resolve() / "maps" / path.name:  # its target would be published with the page
                raise Unreadable("it is a link to another file")
            if not (data := content(path)).startswith(PNG):
                raise Unreadable("it is no PNG")
            made.pictures[path.stem] = data
        except Unreadable as error:
            lines.append(f"{path} is not shown: {error}")
    return made, lines
