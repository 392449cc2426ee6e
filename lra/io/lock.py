"""A lock file with the name of the process that holds it; the kernel releases the lock when the process ends.

The lock is flock(2). It also works between hosts on a network file system that supports it, such as NFS.
"""

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from .atomic import Unreadable, opened

# Name of the lock of a run directory.
NAME = ".owner"
# Seconds between two attempts.
PAUSE = 0.1
# Failed attempts after which a lock counts as held. A process that only looks at a lock holds it for an instant.
ATTEMPTS = 5


class Owner(NamedTuple):
    """The process that holds a lock: the name of its host, its process id and the time when it took the lock."""

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
        waiting: called once, with the owner, if another process holds the lock; after that, wait for the lock. None:
            raise Held instead of waiting.

    Raises:
        Held: another process holds the lock, and ``waiting`` is None.
        OSError: the folder of the lock cannot be written, or its file system has no locks.
    """
    owner = Owner(socket.gethostname(), os.getpid(), time.strftime("%Y-%m-%d %H:%M:%S%z"))
    attempts = 0
    while True:
        with open(path, "ab", buffering=0) as file:
            if _try_lock(file, path):
                file.truncate(0)
                file.write(json.dumps(owner._asdict()).encode())
                try:
                    yield owner
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
    """Return the process that holds a lock; None if no process does."""
    # A file system without locks has no holders.
    with contextlib.suppress(Unreadable, OSError), opened(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _owner(path)
    return None


def _try_lock(file: IO[bytes], path: Path) -> bool:
    """Lock an open file. False if another process holds it, or if its owner removed it from ``path`` in between."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


def _owner(path: Path) -> Owner:
    try:
        return Owner(**json.loads(path.read_text()))
    # The lock was released, or its owner has not written it yet.
    except (OSError, ValueError, TypeError):
        return Owner("an unknown host", 0, "an unknown time")
