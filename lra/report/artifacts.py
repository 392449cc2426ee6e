"""The files in a run directory that the report shows: curves, configuration and maps, read as untrusted input."""

from pathlib import Path
from typing import Any, NamedTuple

from ..io.atomic import Unreadable, content
from ..runs import reader

PNG = b"\x89PNG\r\n\x1a\n"


class Artifacts(NamedTuple):
    """The files of one run: ``curves`` by column and step, flat ``config``, ``pictures`` by file stem."""

    curves: dict[str, dict[int, float]]
    config: dict[str, Any]
    pictures: dict[str, bytes]


def read(folder: Path) -> tuple[Artifacts, list[str]]:
    """Read the files of a run.

    Args:
        folder: run directory.

    Returns:
        The files, each part empty if the run never had it, and a message for each file that cannot be shown.
    """
    artifacts = Artifacts({}, {}, {})
    messages = []
    for part, load in ((artifacts.curves, reader.read_curves), (artifacts.config, reader.read_choices)):
        try:
            part |= load(folder)
        except ValueError as error:
            messages.append(str(error))
    for path in sorted((folder / "maps").glob("*.png")):
        try:
            artifacts.pictures[path.stem] = _picture(folder, path)
        except Unreadable as error:
            messages.append(f"{path} is not shown: {error}")
    return artifacts, messages


def _picture(folder: Path, path: Path) -> bytes:
    # The target of a link would be published with the page.
    if path.resolve() != folder.resolve() / "maps" / path.name:
        raise Unreadable("it is a link to another file")
    data = content(path)
    if not data.startswith(PNG):
        raise Unreadable("it is no PNG")
    return data
