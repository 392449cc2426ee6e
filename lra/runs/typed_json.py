"""Dataclasses as JSON files that hold the sums of themselves and of files beside them: written, read strictly, listed.

A file has, besides the fields of its dataclass, ``form``, the number of the on-disk form; ``files``, the sha256 of each
file beside it that belongs to it; and ``sha256``, the digest of all the rest. A file that was changed on purpose is
read once its ``sha256`` is deleted.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

from annotated_types import Predicate
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from ..disk import atomic
from ..disk.atomic import Unreadable
from ..disk.search import find_files
from ..options import is_name

T = TypeVar("T")
FORM = 2
RECORDS = ("record.json", "pretrain.json")  # that hold the sums of the files beside them
STRICT = ConfigDict(strict=True, allow_inf_nan=False)  # of dataclasses that are read
# A name in a record becomes a folder, and a word of a configuration: no path, and nothing to interpolate.
FolderName = Annotated[str, Predicate(lambda text: is_name(text) and "${" not in text)]
Percent = Annotated[float, Field(ge=0, le=100)]


def save(made: Any, path: Path, files: Iterable[str] = ()) -> None:
    """Write a dataclass, and the folders above its file.

    Args:
        made: instance of the dataclass.
        path: path of the file.
        files: names of files beside it whose sums it holds; those that are missing are left out.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sums = {name: atomic.digest(path.with_name(name)) for name in files if path.with_name(name).exists()}
    tree = json.loads(json.dumps({"form": FORM} | asdict(made) | ({"files": sums} if sums else {})))
    atomic.write(path, json.dumps(tree | {"sha256": _digest(tree)}, indent=1) + "\n")


def parse(kind: type[T], path: Path, name: str, remedy: str) -> T:
    """Read a dataclass.

    Args:
        kind: the dataclass.
        path: path of the file.
        name: name of the kind of file, for the message.
        remedy: remedy for the message.

    Raises:
        ValueError: the file cannot be read, has another form or sum, or a value does not have the type of its field;
            the first one is named.
    """
    try:
        text = atomic.content(path)
        _tree(text)
        return validated(kind, text)
    except Unreadable as error:
        raise ValueError(f"{path} is not {name} ({error}); {remedy}") from None


def check_seed(path: Path, seed: int) -> None:
    """Raise ValueError if a file that says which seed it is of lies in the folder of another seed."""
    if (folder := path.absolute().parent.name).startswith("seed-") and folder != f"seed-{seed}":
        raise ValueError(f"{path} is of seed {seed}; move it to its own folder, or delete it to make it again")


def validated(kind: type[T], text: bytes) -> T:
    """Read a dataclass from JSON. Raises Unreadable, which names the first value without the type of its field."""
    try:
        return _adapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise Unreadable(f"{place}: {first['msg']}" if place else first["msg"]) from None


def verify(path: Path, copy: Path | None = None) -> None:
    """Compare a file, or a copy of it, with its sum in the record beside it, if there is one.

    Raises:
        Unreadable: the sum is another one, or the record cannot be read.
    """
    if (expected := listed(path)) and atomic.digest(copy or path) != expected:
        raise Unreadable("its sha256 is not the one in the record.json or pretrain.json beside it")


def listed(path: Path) -> str | None:
    """The sum of a file in the record beside it; None without one. Raises Unreadable if the record cannot be read."""
    for record in filter(Path.exists, map(path.with_name, RECORDS)):
        try:
            return _tree(atomic.content(record)).get("files", {}).get(path.name)
        except (Unreadable, AttributeError) as error:
            raise Unreadable(f"{record} holds no sums: {error}") from None
    return None


def scan(runs: Path, name: str, load: Callable[[Path], T]) -> tuple[dict[Path, T], list[str]]:
    """Load every file of a name below a folder; links to folders are followed, see ``lra.disk.search``.

    Args:
        runs: the folder.
        name: name of the files.
        load: reads one; raises ValueError or OSError for a file that it rejects.

    Returns:
        The loaded files by their folders, and one message for each link that was skipped and each file that ``load``
        rejected.
    """
    paths, messages = find_files(runs, {name})
    records, damaged = load_all(paths, load)
    return records, messages + damaged


def load_all(paths: Iterable[Path], load: Callable[[Path], T]) -> tuple[dict[Path, T], list[str]]:
    """Load files, and return them by their folders with the messages of the errors."""
    records, damaged = {}, []
    for path in paths:
        try:
            records[path.parent] = load(path)
        except (ValueError, OSError) as error:
            damaged.append(str(error))
    return records, damaged


def _tree(text: bytes) -> dict[str, Any]:
    try:
        tree = json.loads(text)
        form = tree.get("form")
    except (ValueError, AttributeError, RecursionError) as error:
        raise Unreadable(f"it is no JSON object: {str(error)[:100]}") from None
    if type(form) is not int or form != FORM:
        raise Unreadable(f"form {str(form)[:20]} instead of {FORM}: another version made it, below 0.2 without a form")
    if tree.pop("sha256", None) not in (None, _digest(tree)):
        raise Unreadable("its sha256 is not the one in it")
    return tree


def _digest(tree: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


@functools.cache
def _adapter(kind: type) -> TypeAdapter:
    return TypeAdapter(kind)
