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
from dataclasses import asdict, dataclass
from pathlib import Path

NAME = ".owner"  # in the folder of a run
PAUSE = 0.1  # seconds between two attempts
ATTEMPTS = 5  # until a lock counts as held; a process that only looks at it has it for an instant


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The process that holds a lock.

    Args:
        host: its name.
        pid: number of the process.
        since: when it took the lock.
    """

    host: str
    pid: int
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


class Held(Exception):
    """Another process, ``owner``, holds the lock."""

    def __init__(self, owner: Owner):
        super().__init__(str(owner))
        self.owner = owner


@contextlib.contextmanager
def hold(path: Path) -> Iterator[Owner]:
    """Hold the lock until the end of the block.

    Raises:
        Held: another process holds the lock.
        OSError: the folder of the lock cannot be written.
    """
    mine = Owner(host=socket.gethostname(), pid=os.getpid(), since=time.strftime("%Y-%m-%d %H:%M:%S%z"))
    with _locked(path) as descriptor:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(mine)).encode(), 0)
        try:
            yield mine
        finally:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def wait(path: Path, waiting: Callable[[Owner], None]) -> Iterator[Owner]:
    """Wait until the lock is free, then hold it until the end of the block.

    Args:
        path: path of the lock.
        waiting: called once with the owner, before the first pause.

    Raises:
        OSError: the folder of the lock cannot be written.
    """
    reported = False
    with contextlib.ExitStack() as stack:
        while True:
            try:
                mine = stack.enter_context(hold(path))
                break
            except Held as other:
                if not reported:
                    waiting(other.owner)
                reported = True
                time.sleep(PAUSE)
        yield mine


def holder(path: Path) -> Owner | None:
    """The process that holds a lock, None without one."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _owner(path)
    return None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Lock the file that is at ``path``, which the owner before may have removed since it was opened."""
    attempts = 0
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if not _try(descriptor):
                if (attempts := attempts + 1) == ATTEMPTS:
                    raise Held(_owner(path))
                time.sleep(PAUSE)
            elif _is_at(path, descriptor):
                yield descriptor
                return
        finally:
            os.close(descriptor)


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _owner(path: Path) -> Owner:
    try:
        return Owner(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):  # released, or not yet written
        return Owner(host="an unknown host", pid=0, since="an unknown time")
