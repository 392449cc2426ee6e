"""The folder of a run: claimed by one process at a time and tied to one configuration."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ..console import log
from ..disk import checksums, lock
from ..disk.atomic import NO_ROOM
from . import config_file, identity

TEMPORARY = ".*.part"
MADE = ("metrics.csv", "last.ckpt", "best.ckpt", "*.json", "pretrain/best.ckpt")
# Errors of a disk that can be mended without loss, so that the same command can be repeated.
PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE)


@contextlib.contextmanager
def claim(folder: Path, title: str, choices: dict[str, Any]) -> Iterator[dict[str, Any] | None]:
    """Make a run's folder, lock it and write ``config.yaml``.

    At the end ``config.yaml`` is removed if the run wrote nothing else.

    Args:
        folder: of the seed.
        title: of the seed, for the log line about another process.
        choices: flat, see ``Experiment.choices``.

    Yields:
        The choices as ``config.yaml`` has them, which an earlier version of the suite may have written; None, after a
        log line, if another process holds the folder.

    Raises:
        ValueError: the folder was made by other choices, is damaged or cannot be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock.hold(folder / lock.NAME))
        except lock.Held as other:
            log(f"{title}: skipped, {other} is running it")
            yield None
            return
        except OSError as error:
            reason = f"{error.strerror}; choose another folder with runs=..."
            raise ValueError(f"cannot write to {folder}: {reason}") from None
        settled = settle(folder, choices)
        stack.callback(_leave_nothing, folder)
        for part in (*folder.glob(TEMPORARY), *folder.glob(f"pretrain/{TEMPORARY}")):
            part.unlink()
        if not (folder / config_file.NAME).exists() or not begun(folder):
            with writing(folder):
                checksums.save(folder / config_file.NAME, yaml.dump(choices, Dumper=_Dumper))
        yield settled


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data) -> bool:
        return True  # the reader refuses aliases


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn an OSError of a folder that can no longer be written into a ValueError of one line."""
    try:
        yield
    except OSError as error:
        if error.errno not in PASSING:
            raise
        room = "make room, then " if error.errno in NO_ROOM else ""
        reason = f"{error.strerror}; {room}the same command goes on from the last checkpoint"
        raise ValueError(f"{folder} cannot be written: {reason}") from error


def _leave_nothing(folder: Path) -> None:
    """Remove the configuration of a run that wrote nothing else, since it may have been refused."""
    if not begun(folder):
        for name in (config_file.NAME, checksums.NAME):
            (folder / name).unlink(missing_ok=True)


def begun(folder: Path) -> bool:
    """Whether a run has written anything besides its configuration and its log."""
    return any(any(folder.glob(name)) for name in MADE)


def settle(folder: Path, choices: dict[str, Any]) -> dict[str, Any]:
    """Return the choices that a folder belongs to: those of a run that began there, else the given ones.

    Args:
        folder: of the seed.
        choices: flat, see ``Experiment.choices``.

    Raises:
        ValueError: a run began there with a ``config.yaml`` that cannot be read or has another canonical form.
    """
    path = folder / config_file.NAME
    if not begun(folder) or not (path.exists() or path.is_symlink()):
        return choices
    before = config_file.read(path)
    if difference := identity.difference(before, choices):
        raise ValueError(
            f"{folder} was made by another configuration ({difference}); "
            f"start a new study with study=<name> or delete that folder"
        )
    return before
