"""Tests of atomic file replacement, of reading unusable files, and of lock files shared by several processes."""

import errno
import fcntl
import itertools
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
from conftest import run_killed, small_disk, until
from server import start

from lra.config import CONF
from lra.config.errors import explain
from lra.io import atomic, lock
from lra.sweep import job

FORK = multiprocessing.get_context("fork")


def test_atomic_write_killed_at_any_call_leaves_old_or_new_content(tmp_path):
    path = tmp_path / "last.ckpt"
    contents, calls, was_killed = set(), 0, True
    while was_killed:
        path.write_text("old")
        was_killed = run_killed(lambda: atomic.write(path, "new"), calls, (os, "fsync"), (Path, "replace")) == 9
        contents.add(atomic.content(path).decode())
        calls += 1
    assert contents == {"old", "new"} and calls > 3


def test_reading_missing_file_or_folder_raises_reason(tmp_path):
    for read in (atomic.content, atomic.digest):
        with pytest.raises(atomic.Unreadable, match="it is missing"):
            read(tmp_path / "record.json")
        with pytest.raises(atomic.Unreadable, match="it cannot be read: Is a directory"):
            read(tmp_path)
    # A missing file is not explained as a full disk.
    with pytest.raises(FileNotFoundError), atomic.explain_disk_errors(tmp_path):
        (tmp_path / "best.ckpt").read_bytes()
    with pytest.raises(ValueError, match="a cannot be read or written: Stale"), atomic.explain_disk_errors(tmp_path):
        raise OSError(errno.ESTALE, "Stale file handle", "a")


def fail_to_copy(path):
    with atomic.replacing(path):
        raise OSError(errno.EFBIG, "File too large", "source", None, str(path))


LONG = "x" * 20_000
DISK_FULL = {
    # The error of a copy names its source first.
    "last.ckpt": fail_to_copy,
    "report.md": lambda path: atomic.write(path, LONG),
    "best.ckpt": lambda path: atomic.copy(CONF.parent / "README.md", path, lambda part: None),
    # In the folder of a run of a sweep.
    job.FAILED: lambda path: job.fail(path.parent, LONG),
}


@pytest.mark.parametrize("file_name", DISK_FULL)
def test_disk_full_error_names_path_and_remedy(file_name, tmp_path):
    with small_disk(), pytest.raises((OSError, ValueError)) as excinfo:
        DISK_FULL[file_name](tmp_path / file_name)
    reason = "cannot be written: File too large; make room, then the same command resumes"
    assert explain(excinfo.value).startswith(f"{tmp_path / file_name} {reason}")
    assert not list(tmp_path.iterdir())


def start_holder(path):
    """Start a process that holds the lock until it is killed."""
    acquired = FORK.Event()

    def hold_lock():
        with lock.hold(path):
            acquired.set()
            time.sleep(60)

    process = start(hold_lock)
    assert acquired.wait(60)
    return process


@pytest.fixture
def path(tmp_path):
    return tmp_path / ".owner"


def test_lock_names_its_holder_and_is_removed_on_release(path):
    with lock.hold(path) as owner:
        assert owner.pid == os.getpid() and owner.since.startswith(time.strftime("%Y-"))
        assert lock.holder(path) == owner
        with pytest.raises(lock.Held, match=rf"process {os.getpid()} on \S+ since 20\d\d-"), lock.hold(path):
            pass
        assert [p.name for p in path.parent.iterdir()] == [".owner"]
    assert lock.holder(path) is None and not list(path.parent.iterdir())


def test_lock_of_killed_process_is_taken_over(path):
    process = start_holder(path)
    with pytest.raises(lock.Held, match=f"process {process.pid} "), lock.hold(path):
        pass
    process.kill()
    process.join()
    assert path.exists() and lock.holder(path) is None
    with lock.hold(path) as owner:
        assert owner.pid == os.getpid()


@pytest.mark.parametrize("before", ["free", "left"])
def test_concurrent_processes_hold_lock_one_at_a_time(path, tmp_path, before):
    log = tmp_path / "log"
    if before != "free":
        path.write_text('{"host": "elsewhere", "pid": 1, "since": "yesterday"}')
    barrier = FORK.Barrier(6)

    def log_hold_interval():
        barrier.wait()
        with lock.hold(path, lambda owner: None):
            begin = time.monotonic()
            time.sleep(0.05)
            with open(log, "a") as file:
                file.write(f"{begin} {time.monotonic()}\n")

    processes = [start(log_hold_interval) for _ in range(6)]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    intervals = sorted(tuple(map(float, line.split())) for line in log.read_text().splitlines())
    assert len(intervals) == 6 and all(a[1] <= b[0] for a, b in itertools.pairwise(intervals))
    assert [p.name for p in tmp_path.iterdir()] == ["log"]


def test_lock_retries_while_reader_holds_shared_flock(path, monkeypatch):
    path.touch()
    with open(path) as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        monkeypatch.setattr(time, "sleep", lambda _: fcntl.flock(reader, fcntl.LOCK_UN))
        with lock.hold(path) as owner:
            assert lock.holder(path) == owner


def test_wait_for_lock_ends_when_owner_is_killed_and_calls_back_once(path):
    """The killed owner is a zombie until it is joined."""
    process = start_holder(path)
    owners = []

    def kill(owner):
        owners.append(owner.pid)
        os.kill(owner.pid, signal.SIGKILL)
        until(lambda: lock.holder(path) is None)

    with lock.hold(path, kill) as owner:
        assert owners == [process.pid] and owner.pid == os.getpid() and lock.holder(path) == owner
    process.join()
    assert not list(path.parent.iterdir())
