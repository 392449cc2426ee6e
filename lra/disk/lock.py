"""A lock file that names the process that holds a folder, and that other processes take over when its owner is dead.

The kernel would release flock, but on file systems shared by several hosts flock often holds on one host only. This
lock relies only on link() never replacing a file. An owner on this host is dead if its process has ended; one on
another host if it has not touched the lock for SILENT seconds. Exactly one process takes over a dead owner's lock.
"""

import contextlib
import json
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ..console import log
from .atomic import Unreadable, content

NAME = ".owner"  # in the folder of a run
BEAT = 30.0  # seconds between heartbeats, which update the modification time of the lock
SILENT = 10 * BEAT
PAUSE = 0.2  # seconds between the attempts of a process that waits


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The process that holds a lock.

    Args:
        host: its name.
        pid: of the process.
        born: the start of the process, which distinguishes it from a later one with the same pid.
        since: when it took the lock.
        token: unique to this hold.
    """

    host: str
    pid: int
    born: str | None
    since: str
    token: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"

    def alive(self, silence: float) -> bool:
        """Whether the owner still runs, given the seconds since its last heartbeat."""
        if self.host == socket.gethostname():
            return self.born is not None and _born(self.pid) == self.born
        return silence < SILENT


UNREADABLE = Owner(host="an unknown host", pid=0, born=None, since="an unknown time", token="damaged")


class Held(Exception):
    """Another process, ``owner``, is alive and holds the lock."""

    def __init__(self, owner: Owner):
        super().__init__(str(owner))
        self.owner = owner


@contextlib.contextmanager
def hold(path: Path) -> Iterator[Owner]:
    """Hold the lock until the end of the block.

    A process that was suspended for so long that its lock was taken over is sent SIGTERM.

    Raises:
        Held: another process is alive and holds the lock.
        OSError: the folder of the lock cannot be written.
    """
    since = time.strftime("%Y-%m-%d %H:%M:%S%z")
    mine = Owner(
        host=socket.gethostname(), pid=os.getpid(), born=_born(os.getpid()), since=since, token=secrets.token_hex(8)
    )
    draft = path.with_name(f"{path.name}.{mine.token}.draft")
    try:
        draft.write_text(json.dumps(asdict(mine)))
        _acquire(path, draft, mine)
    finally:
        draft.unlink(missing_ok=True)
    end = threading.Event()
    beat = threading.Thread(target=_beat, args=(path, mine, end), daemon=True)
    beat.start()
    try:
        yield mine
    finally:
        end.set()
        beat.join()
        if _read(path) == mine:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def wait(path: Path, waiting: Callable[[Owner], None]) -> Iterator[Owner]:
    """Wait until the lock is free, then hold it until the end of the block.

    Args:
        path: of the lock.
        waiting: called once with a live owner, before the first pause.

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
    """The live owner of a lock by this host's clock, None without one."""
    owner = _read(path)
    with contextlib.suppress(FileNotFoundError):
        if owner and owner.alive(_since_beat(path, time.time())):
            return owner
    return None


def _acquire(path: Path, draft: Path, mine: Owner) -> None:
    while True:
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
        if (owner := _read(path)) == mine:
            return
        if owner is None:  # released in between
            continue
        if owner.alive(_silence(path, draft)):
            raise Held(owner)
        # Two processes may have found the owner dead. Only one creates this link, and it reads the lock once more.
        heir = path.with_name(f"{path.name}.{owner.token}.heir")
        try:
            os.link(draft, heir)
        except FileExistsError:
            other = _read(heir)
            if other and not other.alive(_silence(heir, draft)):
                heir.unlink(missing_ok=True)
            time.sleep(0.01)
            continue
        try:
            if _read(path) == owner:
                os.replace(draft, path)
                return
        finally:
            heir.unlink(missing_ok=True)


def _beat(path: Path, mine: Owner, end: threading.Event) -> None:
    while not end.wait(BEAT):
        with contextlib.suppress(OSError):  # the file system may be unreachable for a while; the next beat tries again
            if (owner := _read(path)) == mine:
                os.utime(path)
            elif owner != UNREADABLE:
                log(f"{path} {f'was taken over by {owner}' if owner else 'is gone'}; stopping")
                os.kill(os.getpid(), signal.SIGTERM)
                return


def _read(path: Path) -> Owner | None:
    """The owner of a lock, None without one; a lock that cannot be read gets an owner that only silence can end."""
    for _ in range(3):  # another process may release and take the lock in between
        try:
            return Owner(**json.loads(content(path)))
        except Unreadable:
            if _absent(path):
                return None
        except (ValueError, TypeError, RecursionError):
            break
    return UNREADABLE


def _absent(path: Path) -> bool:
    try:
        os.lstat(path)
    except OSError as error:
        return isinstance(error, FileNotFoundError)  # after any other error it may be there
    return False


def _silence(path: Path, draft: Path) -> float:
    """Seconds since the last heartbeat by the clock of the file system."""
    os.utime(draft)
    with contextlib.suppress(FileNotFoundError):
        return _since_beat(path, draft.stat().st_mtime)
    return 0.0


def _since_beat(path: Path, now: float) -> float:
    """Seconds from the modification time of a lock to ``now``.

    A time in the future, from a host with another clock, would never become old, so it is set to ``now``. The next
    beat of a live owner replaces it; a dead owner is silent from now on.
    """
    silence = now - path.stat().st_mtime
    if silence < -BEAT:
        with contextlib.suppress(PermissionError):
            os.utime(path, (now, now))
        return 0.0
    return silence


def _born(pid: int) -> str | None:
    """The start of a process in the kernel's ticks; None if it has ended; "" if the system tells only that it runs."""
    if Path("/proc/self/stat").exists():
        try:
            state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if state in "ZX" else fields[18]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ""
