"""A run's folder: one process at a time, and one configuration for good."""

import contextlib
import errno
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from ..disk import checksums, lock
from . import record
from . import config_file
from ..disk.atomic import NO_ROOM

TEMPORARY = ".*.part"
MADE = ("metrics.csv", "last.ckpt", "best.ckpt", record.NAME, "transfer.json")
# What a disk may come back from with nothing lost; with another error the same command would end as it did.
PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE)


def claim(held: contextlib.ExitStack, folder: Path, title: str, choices: dict, study: str) -> bool:
    """Make the folder, lock it until ``held`` ends and write ``config.yaml``, which goes where nothing else was made.

    False, and a line, where another process is at it. Raises ValueError where it was made by other choices, is damaged
    or cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held.enter_context(lock.hold(folder / lock.NAME))
    except lock.Held as other:
        print(f"{title}: {other} is at it, skipped", file=sys.stderr, flush=True)
        return False
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error.strerror}; choose another folder with runs=...") from None
    refuse_other(folder / config_file.NAME, choices, study)
    held.callback(_leave_nothing, folder)
    for part in folder.glob(TEMPORARY):
        part.unlink()
    if not (folder / config_file.NAME).exists() or not begun(folder):
        with writing(folder):
            checksums.save(folder / config_file.NAME, yaml.dump(choices, Dumper=_Dumper))
    return True


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data) -> bool:
        return True  # who reads it refuses them


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """One line, as a ValueError, where the folder cannot be written any more."""
    try:
        yield
    except OSError as error:
        if error.errno not in PASSING:
            raise
        room = "make room, then " if error.errno in NO_ROOM else ""
        reason = f"{error.strerror}; {room}the same command goes on from the last checkpoint"
        raise ValueError(f"{folder} cannot be written: {reason}") from error


def _leave_nothing(folder: Path) -> None:
    """Remove the configuration of a run of which nothing else was made: it may have been refused."""
    if not begun(folder):
        for name in (config_file.NAME, checksums.NAME):
            (folder / name).unlink(missing_ok=True)


def begun(folder: Path) -> bool:
    """Whether there is anything of a run but its configuration and what it said."""
    return any((folder / name).exists() for name in MADE)


def refuse_other(path: Path, choices: dict, study: str) -> None:
    """Raise ValueError where something was made by a config.yaml that says something else, or nothing."""
    if not begun(path.parent) or not (path.exists() or path.is_symlink()):
        return
    before = config_file.read(path)
    if before != choices:
        raise ValueError(
            f"{path.parent} was made by another configuration ({record.difference(before, choices)}); "
            f"start a new study with study=<name> or delete that folder"
        )
