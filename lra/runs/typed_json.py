"""JSON files with the fields of a dataclass: one read strictly, or all below a folder."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

from annotated_types import Predicate
from pydantic import AliasChoices, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from ..disk import checksums
from ..disk.atomic import Unreadable
from ..options import is_name

T = TypeVar("T")
STRICT = ConfigDict(strict=True, allow_inf_nan=False)  # of dataclasses that are read
# What a record names becomes a folder, and a word of a configuration: no path, and nothing to interpolate.
FolderName = Annotated[str, Predicate(lambda text: is_name(text) and "${" not in text)]
Percent = Annotated[float, Field(ge=0, le=100)]


def renamed(field: str, before: str) -> FieldInfo:
    """Let an ``Annotated`` field of a record also be read under its former name."""
    return Field(validation_alias=AliasChoices(field, before))


def parse(kind: type[T], path: Path, name: str, remedy: str) -> T:
    """Read a dataclass from a JSON file.

    Args:
        kind: the dataclass.
        path: of the file.
        name: of the kind of file, for the message.
        remedy: for the message.

    Raises:
        ValueError: the file cannot be read, or a value does not have the type of its field; the first one is named.
    """
    try:
        return validated(kind, checksums.read(path))
    except Unreadable as error:
        raise ValueError(f"{path} is not {name} ({error}); {remedy}") from None


def validated(kind: type[T], text: bytes) -> T:
    """Read a dataclass from JSON. Raises Unreadable, which names the first value without the type of its field."""
    try:
        return _adapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise Unreadable(": ".join([*filter(None, [".".join(map(str, first["loc"]))]), first["msg"]])) from None


@functools.cache
def _adapter(kind: type) -> TypeAdapter:
    return TypeAdapter(kind)


def scan(runs: Path, name: str, load: Callable[[Path], T]) -> tuple[dict[Path, T], list[str]]:
    """Load every file of a name below a folder.

    Args:
        runs: the folder.
        name: of the files.
        load: reads one; raises ValueError or OSError for a file that it refuses.

    Returns:
        The loaded files by their folders, and one line for each that ``load`` refused or that is missing although the
        list of checksums has it.
    """
    records, damaged = {}, []
    for path in sorted({path.with_name(name) for kind in (name, checksums.NAME) for path in runs.rglob(kind)}):
        try:
            if os.path.lexists(path):
                records[path.parent] = load(path)
            elif checksums.expected(path):
                damaged.append(f"{path} is missing, {checksums.NAME} beside it has it")
        except (ValueError, OSError) as error:
            damaged.append(str(error))
    return records, damaged
