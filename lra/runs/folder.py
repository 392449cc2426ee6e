"""A run's folder: one process at a time, and one configuration for good."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ..console import log
from ..disk import checksums, lock
from ..disk.atomic import NO_ROOM
from . import config_file, record

TEMPORARY = ".*.part"
MADE = ("metrics.csv", "last.ckpt", "best.ckpt", record.NAME, "transfer.json", "pretrain/best.ckpt")
# Errors that a disk may recover from with nothing lost; with another one the same command would end as it did.
PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE)


@contextlib.contextmanager
def claim(folder: Path, title: str, choices: dict[str, Any]) -> Iterator[dict[str, Any] | None]:
    """Make a run's folder, lock it and write ``config.yaml``, which is removed at the end if nothing else was made.

    Args:
        folder: of the seed.
        title: of the seed, for the line about another process.
        choices: flat, see ``record.choices``.

    Yields:
        The choices as ``config.yaml`` has them, perhaps as an earlier version of the suite wrote them; None, after a
        line, if another process has the folder.

    Raises:
        ValueError: the folder was made by other choices, is damaged or cannot be written.
    """
    with contextlib.ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(lock.hold(folder / lock.NAME))
        except lock.Held as other:
            log(f"{title}: {other} is at it, skipped")
            yield None
            return
        except OSError as error:
            reason = f"{error.strerror}; choose another folder with runs=..."
            raise ValueError(f"cannot write to {folder}: {reason}") from None
        settled = settle(folder, choices)
        held.callback(_leave_nothing, folder)
        for part in (*folder.glob(TEMPORARY), *folder.glob(f"pretrain/{TEMPORARY}")):
            part.unlink()
        if not (folder / config_file.NAME).exists() or not begun(folder):
            with writing(folder):
                checksums.save(folder / config_file.NAME, yaml.dump(choices, Dumper=_Dumper))
        yield settled


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data) -> bool:
        return True  # who reads it refuses them


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raise ValueError, in one line, for a folder that cannot be written any more."""
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
    """Whether there is anything of a run but its configuration and its output."""
    return any((folder / name).exists() for name in MADE)


def settle(folder: Path, choices: dict[str, Any]) -> dict[str, Any]:
    """Settle which choices a folder is of: those that made what is there, else the given ones.

    Raises:
        ValueError: something was made there by a ``config.yaml`` whose canonical form is another one, or by none that
            can be read.
    """
    path = folder / config_file.NAME
    if not begun(folder) or not (path.exists() or path.is_symlink()):
        return choices
    before = config_file.read(path)
    if difference := record.difference(before, choices):
        raise ValueError(
            f"{folder} was made by another configuration ({difference}); "
            f"start a new study with study=<name> or delete that folder"
        )
    return before
