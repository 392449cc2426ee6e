"""Files replaced as a whole, and locks: what a kill, a link, a damaged file and a second process leave."""

import errno
import fcntl
import itertools
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from lra.config.errors import explain
from lra.io import atomic, lock
from lra.sweep import job


def killed_after(calls: int, write) -> bool:
    """Whether a process that ends at its call number ``calls`` of os.fsync or Path.replace was still writing."""
    if (child := os.fork()) == 0:
        left = iter(range(calls))

        def counted(function):
            def call(*words):
                if next(left, None) is None:
                    os._exit(9)
                return function(*words)

            return call

        os.fsync, Path.replace = counted(os.fsync), counted(Path.replace)
        write()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_a_kill_at_any_moment_leaves_one_of_the_two_versions(tmp_path):
    path = tmp_path / "last.ckpt"
    found, calls, killed = set(), 0, True
    while killed:
        path.write_text("old")
        killed = killed_after(calls, lambda: atomic.write(path, "new"))
        found.add(atomic.content(path).decode())
        calls += 1
    assert found == {"old", "new"} and calls > 3


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(tmp_path):
    (tmp_path / f".a.{os.getpid()}.part").symlink_to(tmp_path / "other")
    atomic.write(tmp_path / "a", "text")
    assert {path.name for path in tmp_path.iterdir()} == {"a"} and not (tmp_path / "a").is_symlink()


DAMAGE = {
    "it is missing": lambda path: path.unlink(),
    "it is a folder": lambda path: (path.unlink(), path.mkdir()),
    "it is not a regular file": lambda path: (path.unlink(), os.mkfifo(path)),
    "it has more than 100 bytes": lambda path: path.write_text("x" * 101),
    "it cannot be read: Too many levels of symbolic links": lambda path: (path.unlink(), path.symlink_to(path)),
}


@pytest.mark.parametrize("reason", DAMAGE)
def test_a_file_that_cannot_be_read_raises_its_reason_and_nothing_waits(tmp_path, reason):
    path = tmp_path / "record.json"
    path.write_text("old")
    assert atomic.content(path, 100) == b"old"
    DAMAGE[reason](path)
    with pytest.raises(atomic.Unreadable, match=reason):
        atomic.content(path, 100)


FULL = {
    "a file": (lambda home: atomic.write(home / "report.md", "text"), "report.md"),
    "a run of a sweep": (lambda home: job.fail(home, "no memory"), ""),
}


@pytest.mark.parametrize("written", FULL)
def test_a_full_disk_names_the_path_and_what_to_do(written, tmp_path, monkeypatch):
    def full(path, text, **_):
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    write, place = FULL[written]
    with pytest.raises((OSError, ValueError)) as stop:
        write(tmp_path)
    reason = "cannot be written: No space left on device; make room, then the same command resumes"
    assert explain(stop.value).startswith(f"{tmp_path / place} {reason}")
    assert not list(tmp_path.iterdir())


def test_a_copy_that_is_rejected_leaves_no_file(tmp_path):
    def refuse(copy):
        assert copy.read_text() == "text"
        raise ValueError("no")

    (tmp_path / "a").write_text("text")
    with pytest.raises(ValueError, match="no"):
        atomic.copy(tmp_path / "a", tmp_path / "b", refuse)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


FORK = multiprocessing.get_context("fork")


def hold(path, held):
    """Take the lock, say so and keep it."""
    with lock.hold(path):
        held.set()
        time.sleep(60)


def holder_of(path):
    """A process that holds the lock."""
    held = FORK.Event()
    process = FORK.Process(target=hold, args=(path, held))
    process.start()
    assert held.wait(60)
    return process


def race(path, log, barrier):
    """Start at the same time as the others, and write down from when to when the lock was held."""
    barrier.wait()
    with lock.hold(path, lambda owner: None):
        begin = time.time()
        time.sleep(0.05)
        with open(log, "a") as file:
            file.write(f"{begin} {time.time()}\n")


@pytest.fixture
def path(tmp_path):
    return tmp_path / ".owner"


def test_a_lock_names_its_holder_and_is_gone_afterwards(path):
    with lock.hold(path) as owner:
        assert owner.pid == os.getpid() and owner.since.startswith(time.strftime("%Y-"))
        assert lock.holder(path) == owner
        with pytest.raises(lock.Held, match=rf"process {os.getpid()} on \S+ since 20\d\d-"), lock.hold(path):
            pass
        assert [p.name for p in path.parent.iterdir()] == [".owner"]
    assert lock.holder(path) is None and not list(path.parent.iterdir())


@pytest.mark.parametrize("reaped", [True, False], ids=["gone", "zombie"])
def test_the_lock_of_a_killed_process_is_taken_over(path, reaped):
    process = holder_of(path)
    with pytest.raises(lock.Held, match=f"process {process.pid} "), lock.hold(path):
        pass
    os.kill(process.pid, signal.SIGKILL)
    if reaped:
        process.join()
    else:
        time.sleep(0.2)
    assert path.exists() and lock.holder(path) is None
    with lock.hold(path) as owner:
        assert owner.pid == os.getpid()
    process.join()


@pytest.mark.parametrize("before", ["free", "left", "damaged"])
def test_one_of_many_processes_has_the_lock_at_a_time(path, tmp_path, before):
    log = tmp_path / "log"
    if before != "free":
        path.write_text('{"host": "elsewhere", "pid": 1, "since": "yesterday"}' if before == "left" else "{")
    barrier = FORK.Barrier(6)
    processes = [FORK.Process(target=race, args=(path, log, barrier)) for _ in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    spans = sorted(tuple(map(float, line.split())) for line in log.read_text().splitlines())
    assert len(spans) == 6 and all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    assert [p.name for p in tmp_path.iterdir()] == ["log"]


def test_a_lock_whose_text_is_damaged_is_held_all_the_same(path):
    with lock.hold(path):
        path.write_text("{")
        with pytest.raises(lock.Held, match="unknown host"), lock.hold(path):
            pass
        assert lock.holder(path).pid == 0


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to(path.with_name("other"))])
def test_a_pipe_and_a_link_are_no_lock(path, make):
    make(path)
    with pytest.raises(OSError), lock.hold(path):
        pass
    assert lock.holder(path) is None and not path.with_name("other").exists()


def test_a_look_at_a_lock_keeps_nobody_from_it(path, monkeypatch):
    path.touch()
    with open(path) as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        monkeypatch.setattr(time, "sleep", lambda _: fcntl.flock(looking, fcntl.LOCK_UN))
        with lock.hold(path) as owner:
            assert lock.holder(path) == owner


def test_waiting_ends_with_a_killed_owner_and_is_reported_once(path):
    process = holder_of(path)
    owners = []

    def kill(owner):
        owners.append(owner.pid)
        os.kill(owner.pid, signal.SIGKILL)

    with lock.hold(path, kill) as owner:
        assert owners == [process.pid]
        assert owner.pid == os.getpid() and lock.holder(path) == owner
    process.join()
    assert not list(path.parent.iterdir())


def test_an_error_of_the_block_is_no_reason_to_wait(path):
    with pytest.raises(lock.Held), lock.hold(path, pytest.fail) as owner:
        raise lock.Held(owner)
    assert not path.exists()
