"""A run's folder: one process at a time, and one configuration for good."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml
from filelock import FileLock, Timeout

from . import record

TEMPORARY = ".*.part"


@contextlib.contextmanager
def claim(folder: Path, title: str, choices: dict, study: str) -> Iterator[bool]:
    """Make the folder, lock it and write ``config.yaml``; False, and a line, where another process is at it.

    Raises ValueError where it was made by other choices, is damaged or cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        lock.acquire(timeout=0)
    except Timeout:
        print(f"{title}: another process is at it, skipped", file=sys.stderr)
        yield False
        return
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error.strerror}; choose another folder with runs=...") from None
    with lock:
        _refuse_other(folder / "config.yaml", choices, study)
        for part in folder.glob(TEMPORARY):
            part.unlink()
        try:
            if not (folder / "config.yaml").exists():
                record.write(folder / "config.yaml", yaml.safe_dump(choices))
            yield True
        except OSError as error:
            reason = f"{error.strerror or error}; the same command goes on from the last checkpoint"
            raise ValueError(f"{folder} cannot be written: {reason}") from error


def _refuse_other(path: Path, choices: dict, study: str) -> None:
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
