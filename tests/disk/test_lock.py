"""The lock of a run's folder, between real processes."""

import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace

import pytest

from lra.config import CONF
from lra.disk import lock

HOLD = """
import sys, time, pathlib
from lra.disk.lock import hold
with hold(pathlib.Path(sys.argv[1])):
    print("got", flush=True)
    time.sleep(60)
"""
# Waits for the common start, tries once, and writes when it had the lock; a loser says who won.
RACE = """
import pathlib, sys, time
from lra.disk.lock import Held, hold
path, log, start = pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
while time.time() < start: pass
try:
    with hold(path):
        begin = time.time(); time.sleep(0.2)
        open(log, "a").write(f"{begin} {time.time()}\\n")
except Held:
    pass
"""


def python(code, *args, **kwargs):
    return subprocess.Popen([sys.executable, "-c", code, *map(str, args)], cwd=CONF.parent, **kwargs)


@pytest.fixture
def path(tmp_path):
    return tmp_path / ".owner"


def someone_else(path, **changes):
    """Leaves the lock of a process that is gone, changed as wanted."""
    with lock.hold(path) as owner:
        left = replace(owner, token="ff", **changes)
    path.write_text(json.dumps(asdict(left)))
    return left


def test_it_says_who_holds_it_and_since_when_and_is_gone_afterwards(path):
    with lock.hold(path) as owner:
        assert owner.pid == os.getpid() and owner.since.startswith(time.strftime("%Y-"))
        assert lock.holder(path) == owner
        with pytest.raises(lock.Held, match=rf"process {os.getpid()} on \S+ since 20\d\d-"), lock.hold(path):
            pass
        assert [p.name for p in path.parent.iterdir()] == [".owner"]
    assert lock.holder(path) is None and not list(path.parent.iterdir())


def test_it_is_released_after_an_error(path):
    with pytest.raises(RuntimeError), lock.hold(path):
        raise RuntimeError
    assert not path.exists()


@pytest.mark.parametrize("reaped", [True, False], ids=["gone", "zombie"])
def test_the_lock_of_a_killed_process_is_taken_over(path, reaped):
    process = python(HOLD, path, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "got\n"
    with pytest.raises(lock.Held, match=f"process {process.pid} "), lock.hold(path):
        pass
    os.kill(process.pid, signal.SIGKILL)
    if reaped:
        process.wait()
    else:
        time.sleep(0.2)
    assert path.exists() and lock.holder(path) is None
    with lock.hold(path) as owner:
        assert owner.pid == os.getpid()
    process.wait()


def test_a_later_process_with_the_same_pid_is_not_the_owner(path):
    someone_else(path, born="1")
    with lock.hold(path) as owner:
        assert owner.born != "1"


def test_an_owner_on_another_host_lives_as_long_as_it_beats(path):
    left = someone_else(path, host="elsewhere")
    now = time.time()
    os.utime(path, (now, now - lock.SILENT + 20))
    assert lock.holder(path) == left
    with pytest.raises(lock.Held, match="on elsewhere since"), lock.hold(path):
        pass
    os.utime(path, (now, now - lock.SILENT - 20))
    assert lock.holder(path) is None
    with lock.hold(path) as owner:
        assert lock.holder(path) == owner


@pytest.mark.parametrize("look", ["hold", "holder"])
def test_a_lock_dated_ahead_gets_old_like_any_other(path, look, monkeypatch):
    left = someone_else(path, host="elsewhere")
    ahead = time.time() + 86400
    os.utime(path, (ahead, ahead))
    if look == "hold":
        with pytest.raises(lock.Held, match="on elsewhere since"), lock.hold(path):
            pass
    else:
        assert lock.holder(path) == left
    monkeypatch.setattr(lock, "SILENT", 0.05)
    time.sleep(0.1)
    assert lock.holder(path) is None
    with lock.hold(path) as owner:
        assert lock.holder(path) == owner


def test_a_live_owner_with_a_clock_that_is_ahead_keeps_its_lock(path):
    """It puts its own time there again with every beat."""
    left = someone_else(path, host="elsewhere")
    ahead = time.time() + 86400
    for _ in range(3):
        os.utime(path, (ahead, ahead))
        with pytest.raises(lock.Held), lock.hold(path):
            pass
        assert lock.holder(path) == left


def test_a_damaged_lock_counts_as_held_until_it_is_old(path):
    path.write_text("")
    with pytest.raises(lock.Held, match="unknown host"), lock.hold(path):
        pass
    os.utime(path, (0, time.time() - lock.SILENT - 20))
    with lock.hold(path):
        pass


def test_it_beats(path, monkeypatch):
    monkeypatch.setattr(lock, "BEAT", 0.02)
    with lock.hold(path):
        os.utime(path, (0, 0))
        deadline = time.monotonic() + 10
        while path.stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert time.time() - path.stat().st_mtime < 10


def test_an_error_of_the_file_system_stops_nothing(path, monkeypatch):
    failed, killed = threading.Event(), threading.Event()

    def failing(call):
        def called(target, *rest, **more):
            if target != path:
                return call(target, *rest, **more)
            failed.set()
            raise OSError(errno.EIO, "Input/output error")

        return called

    monkeypatch.setattr(lock, "BEAT", 0.02)
    monkeypatch.setattr(os, "kill", lambda *_: killed.set())
    with lock.hold(path):
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", failing(os.open))
            patch.setattr(os, "lstat", failing(os.lstat))
            assert failed.wait(10)
            time.sleep(0.1)
        os.utime(path, (0, 0))
        deadline = time.monotonic() + 10
        while path.stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert path.stat().st_mtime > 0 and not killed.is_set()


def test_a_process_that_lost_its_lock_is_stopped_and_leaves_the_new_one_alone(path, monkeypatch, capfd):
    stopped = threading.Event()
    monkeypatch.setattr(lock, "BEAT", 0.02)
    monkeypatch.setattr(
        os, "kill", lambda pid, number: (pid, number) == (os.getpid(), signal.SIGTERM) and stopped.set()
    )
    with lock.hold(path) as owner:
        path.write_text(json.dumps(asdict(replace(owner, host="elsewhere", token="ff"))))
        assert stopped.wait(10)
    assert json.loads(path.read_text())["host"] == "elsewhere"
    assert "taken over by process" in capfd.readouterr().err


@pytest.mark.parametrize("before", ["free", "dead", "silent"])
def test_of_many_processes_one_has_it_at_a_time(path, tmp_path, before):
    log = tmp_path / "log"
    if before == "dead":
        someone_else(path, born="1")
    elif before == "silent":
        someone_else(path, host="elsewhere")
        os.utime(path, (0, 0))
    start = time.time() + 1.5
    for process in [python(RACE, path, log, start) for _ in range(6)]:
        assert process.wait(60) == 0
    spans = sorted(tuple(map(float, line.split())) for line in log.read_text().splitlines())
    assert spans and all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    assert [p.name for p in tmp_path.iterdir()] == ["log"]


def test_waiting_ends_with_a_killed_owner_and_is_told_once(path):
    process = python(HOLD, path, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "got\n"
    told = []

    def waiting(owner):
        told.append(owner.pid)
        os.kill(owner.pid, signal.SIGKILL)

    with lock.wait(path, waiting) as owner:
        assert told == [process.pid] and owner.pid == os.getpid() and lock.holder(path) == owner
    process.wait()
    assert not list(path.parent.iterdir())


def test_what_the_block_refuses_is_no_reason_to_wait(path):
    with pytest.raises(lock.Held), lock.wait(path, pytest.fail) as owner:
        raise lock.Held(owner)
    assert not path.exists()
