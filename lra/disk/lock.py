"""A lock file that names the process that holds a folder; the kernel releases the lock when the process ends.

The lock is flock(2), which holds between the hosts of a network file system if that is mounted so (NFS is).
"""

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from .atomic import Unreadable, opened

NAME = ".owner"  # in the folder of a run
PAUSE = 0.1  # seconds between two attempts
ATTEMPTS = 5  # until a lock counts as held; a process that only looks at it has it for an instant


class Owner(NamedTuple):
    """The process that holds a lock: the name of its host, its number and when it took the lock."""

    host: str
    pid: int
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


class Held(Exception):
    """Another process, an ``Owner``, holds the lock."""


@contextlib.contextmanager
def hold(path: Path, waiting: Callable[[Owner], None] | None = None) -> Iterator[Owner]:
    """Hold the lock until the end of the block.

    Args:
        path: path of the lock.
        waiting: called once with the owner if another process holds the lock, which is then waited for.

    Raises:
        Held: another process holds the lock, and ``waiting`` is None.
        OSError: the folder of the lock cannot be written.
    """
    mine = Owner(socket.gethostname(), os.getpid(), time.strftime("%Y-%m-%d %H:%M:%S%z"))
    attempts = 0
    while True:
        with open(path, "r+b", buffering=0, opener=_opener) as file:
            if _locked(file, path):
                file.truncate(0)
                file.write(json.dumps(mine._asdict()).encode())
                try:
                    yield mine
                finally:
                    path.unlink(missing_ok=True)
                return
        attempts += 1
        if attempts == ATTEMPTS:
            if waiting is None:
                raise Held(_owner(path))
            waiting(_owner(path))
        time.sleep(PAUSE)


def holder(path: Path) -> Owner | None:
    """The process that holds a lock, None without one."""
    with contextlib.suppress(Unreadable), opened(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _owner(path)
    return None


def _opener(path: Path, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW, 0o666)  # a link would have another file overwritten


def _locked(file: BinaryIO, path: Path) -> bool:
    """Lock a file, unless another process has it or the owner before removed it from ``path`` since it was opened."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


def _owner(path: Path) -> Owner:
    try:
        return Owner(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):  # released, or not yet written
        return Owner("an unknown host", 0, "an unknown time")
