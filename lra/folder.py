"""A run's folder: one process at a time, and one configuration for good."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import yaml

from data_prep.source import NO_ROOM

from . import lock, record
from .devices import say

TEMPORARY = ".*.part"


def claim(held: contextlib.ExitStack, folder: Path, title: str, choices: dict, study: str) -> bool:
    """Make the folder, lock it until ``held`` ends and write ``config.yaml``.

    False, and a line, where another process is at it. Raises ValueError where it was made by other choices, is damaged
    or cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held.enter_context(lock.hold(folder / lock.NAME))
    except lock.Held as other:
        say(f"{title}: {other} is at it, skipped")
        return False
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error.strerror}; choose another folder with runs=...") from None
    refuse_other(folder / "config.yaml", choices, study)
    for part in folder.glob(TEMPORARY):
        part.unlink()
    if not (folder / "config.yaml").exists():
        with writing(folder):
            record.write(folder / "config.yaml", yaml.safe_dump(choices))
    return True


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """One line, as a ValueError, where the folder cannot be written any more."""
    try:
        yield
    except OSError as error:
        room = "make room, then " if error.errno in NO_ROOM else ""
        reason = f"{error.strerror or error}; {room}the same command goes on from the last checkpoint"
        raise ValueError(f"{folder} cannot be written: {reason}") from error


def refuse_other(path: Path, choices: dict, study: str) -> None:
    """Raise ValueError where a config.yaml is there and says something else."""
    if not path.exists():
        return
    before = yaml.safe_load(path.read_text())
    if not isinstance(before, dict):
        raise ValueError(f"{path} is damaged; delete its folder to run that seed again")
    if before != choices:
        raise ValueError(
            f"{path.parent} was made by another configuration ({record.difference(before, choices)}); "
            f"start a new study with study=<name> or delete that folder"
        )
