"""Dataclasses as JSON files with checksums: written, read strictly, and found below a folder.

In addition to the fields of its dataclass a file has ``form``, the number of the on-disk form; ``files``, the sha256 of
other files in its folder that belong to it; and ``sha256``, the digest of everything else. To edit such a file by hand,
delete its ``sha256``.
"""

import errno
import functools
import hashlib
import json
import os
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, cast

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from ..options import is_name
from . import atomic
from .atomic import Unreadable

T = TypeVar("T")
FORM: Final = 2
# Files that hold the checksums of other files in their folder.
RECORDS = ("record.json", "pretrain.json")
# Configuration of dataclasses that are read.
STRICT = ConfigDict(strict=True, allow_inf_nan=False)


def _check_folder_name(text: str) -> str:
    if not is_name(text):
        raise ValueError(f"{text!r} is not a valid folder name")
    return text


# A name in a record becomes a folder and part of a configuration, so it is not a path and interpolates nothing.
FolderName = Annotated[str, AfterValidator(_check_folder_name)]
Percent = Annotated[float, Field(ge=0, le=100)]


def save(record: Any, path: Path, files: Iterable[str] = ()) -> None:
    """Write a dataclass to a file, and create its folder.

    Args:
        record: instance of the dataclass.
        path: path of the file.
        files: names of files in the same folder whose checksums are stored; missing ones are left out.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    checksums = {}
    for name in files:
        file = path.with_name(name)
        if file.exists():
            checksums[name] = atomic.digest(file)
    tree = {"form": FORM} | asdict(record)
    if checksums:
        tree["files"] = checksums
    # The digest is taken over what a reader will parse: tuples are lists there.
    tree = json.loads(json.dumps(tree))
    tree["sha256"] = _digest(tree)
    atomic.write(path, json.dumps(tree, indent=1) + "\n")


def parse(kind: type[T], path: Path, name: str, remedy: str) -> T:
    """Read a dataclass from a file.

    Args:
        kind: the dataclass.
        path: path of the file.
        name: what the file should be, for the message, such as "a fresh-test result".
        remedy: remedy, for the message.

    Raises:
        ValueError: the file cannot be read, has another format or checksum, or a value does not have the type of its
            field; the message names the first such value.
    """
    try:
        text = atomic.content(path)
        # Check form and checksum. pydantic parses the text again, since it takes lists for tuples from JSON only.
        _parse_tree(text)
        return validated(kind, text)
    except Unreadable as error:
        raise ValueError(f"{path} is not {name} ({error}); {remedy}") from None


def check_seed(path: Path, seed: int) -> None:
    """Raise ValueError if a file with a seed lies in the directory of another seed."""
    folder = path.absolute().parent.name
    if folder.startswith("seed-") and folder != f"seed-{seed}":
        raise ValueError(f"{path} belongs to seed {seed}; move it to its own folder, or delete it and run again")


def validated(kind: type[T], text: bytes) -> T:
    """Read a dataclass from JSON. Raises Unreadable, which names the first value without the type of its field."""
    adapter = _adapter(cast(Hashable, kind))
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False, include_context=False)
        first = details[0]
        key = ".".join(str(part) for part in first["loc"])
        message = first["msg"]
        raise Unreadable(f"{key}: {message}" if key else message) from None


class DamagedRecord(Unreadable):
    """The record that lists the checksums of a folder cannot be read."""


def verify(path: Path, copy: Path | None = None) -> None:
    """Compare a file, or a copy of it, with its checksum in the record of its folder, if there is one.

    Raises:
        Unreadable: the checksums differ, or the record cannot be read.
    """
    expected = recorded_digest(path)
    if expected and atomic.digest(copy or path) != expected:
        raise Unreadable("its sha256 does not match the record.json or pretrain.json of its folder")


def recorded_digest(path: Path) -> str | None:
    """The checksum of a file in the record of its folder; None without one.

    Raises:
        DamagedRecord: the record cannot be read.
    """
    for name in RECORDS:
        record = path.with_name(name)
        if not record.exists():
            continue
        try:
            tree = _parse_tree(atomic.content(record))
            checksums = tree.get("files", {})
            return checksums.get(path.name)
        except (Unreadable, AttributeError) as error:
            raise DamagedRecord(f"{record} cannot be read ({error}); delete it to run that seed again") from None
    return None


def scan(root: Path, name: str, load: Callable[[Path], T]) -> tuple[dict[Path, T], list[str]]:
    """Load every file of a name below a folder; links to folders are followed, see ``find_files``.

    Args:
        root: the folder.
        name: name of the files.
        load: reads one; raises ValueError or OSError for a file that it rejects.

    Returns:
        The loaded files by their folders, and one message for each broken link, each folder that cannot be read
        and each file that ``load`` rejected.
    """
    paths, messages = find_files(root, {name})
    records, errors = load_all(paths, load)
    return records, messages + errors


def load_all(paths: Iterable[Path], load: Callable[[Path], T]) -> tuple[dict[Path, T], list[str]]:
    """Load files, and return them by their folders, with the messages of the errors."""
    records: dict[Path, T] = {}
    errors: list[str] = []
    for path in paths:
        try:
            records[path.parent] = load(path)
        except (ValueError, OSError) as error:
            errors.append(str(error))
    return records, errors


def _parse_tree(text: bytes) -> dict[str, Any]:
    """Parse a file, and check its form and its checksum. Raises Unreadable."""
    try:
        tree = json.loads(text)
        form = tree.get("form")
    except (ValueError, AttributeError, RecursionError) as error:
        raise Unreadable(f"it is not a JSON object: {str(error)[:100]}") from None
    if form != FORM:
        reason = "another version wrote it; versions before 0.2 wrote no format number"
        raise Unreadable(f"format {form} instead of {FORM}: {reason}")
    expected = tree.pop("sha256", None)
    if expected not in (None, _digest(tree)):
        raise Unreadable("its contents do not match its sha256")
    return tree


def _digest(tree: dict[str, Any]) -> str:
    text = json.dumps(tree, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def _adapter(kind: Any) -> TypeAdapter:
    return TypeAdapter(kind)


def find_files(root: Path, names: Collection[str]) -> tuple[list[Path], list[str]]:
    """Find every file with one of the names below a folder.

    Links to folders are followed, because training writes through them: a study, a label or a seed may lie on another
    disk. A folder that two paths lead to is read once, so a record is never counted twice, and circular links end. A
    link to a folder that contains ``root`` is not followed.

    Args:
        root: folder to search; it may be a link itself.
        names: file names.

    Returns:
        The sorted paths of the files, and a message for each folder that cannot be read and each broken link.
    """
    visited: set[str] = set()
    paths: list[Path] = []
    messages: list[str] = []

    def report(error: OSError) -> None:
        if error.errno != errno.ENOENT:
            messages.append(f"{error.filename} cannot be read: {error.strerror}")

    real_root = os.path.realpath(root)
    for folder, subfolders, files in os.walk(root, onerror=report, followlinks=True):
        real_folder = os.path.realpath(folder)
        contains_root = folder != str(root) and os.path.commonpath([real_folder, real_root]) == real_folder
        if contains_root or real_folder in visited:
            subfolders.clear()
            continue
        visited.add(real_folder)
        # Links come last, so that a folder next to its link keeps its own path.
        subfolders.sort(key=lambda name: (os.path.islink(os.path.join(folder, name)), name))
        for name in files:
            path = Path(folder, name)
            if name in names:
                paths.append(path)
            elif path.is_symlink() and not path.exists():
                messages.append(f"{path} is a link to {os.readlink(path)}, which does not exist")
    return sorted(paths), messages
