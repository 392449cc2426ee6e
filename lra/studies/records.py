"""The records of studies: dataclasses as JSON files, see ``lra.runs.typed_json``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..runs import typed_json


def save(record: Any, path: Path) -> None:
    """Write a dataclass, and the folders above its file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    typed_json.save(record, path)


def load(kind: type[typed_json.T], path: Path, of: str = "this study", valid: Callable[..., bool] | None = None):
    """Read a dataclass.

    Args:
        kind: the dataclass.
        path: path of the file.
        of: study, for the message.
        valid: whether the values of the fields go together.

    Raises:
        ValueError: the file does not hold one.
    """
    name, remedy = f"a record of {of}", "delete it to make it again"
    record = typed_json.parse(kind, path, name, remedy)
    if valid and not valid(record):
        raise ValueError(f"{path} is not {name} (values are missing); {remedy}")
    return record
