"""SHA256SUMS: a kill at any moment leaves a file that has its sum; what was changed, or is no file, is told."""

import os
import subprocess
from pathlib import Path

import pytest

from lra.disk import atomic, checksums

CALLS = ("fsync", "replace")  # what a file is replaced by


def killed_after(calls: int, write) -> bool:
    """Run ``write`` in a process that is gone at the call of that number to os.fsync or Path.replace."""
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


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "from before there were sums"])
def test_a_kill_at_any_moment_leaves_one_of_the_two_versions_and_its_sum(tmp_path, listed):
    path = tmp_path / "last.ckpt"
    found, calls = set(), 0
    while True:
        (tmp_path / checksums.NAME).unlink(missing_ok=True)
        path.write_text("old")
        if listed:
            checksums.save(path, "old")
        killed = killed_after(calls, lambda: checksums.save(path, "new"))
        for _ in range(2):  # as it was left, and after the same command again
            found.add(checksums.read(path).decode())
            assert checksums.check(path) or not listed
            checksums.save(path, checksums.read(path).decode())
        assert len(checksums.entries(tmp_path)["last.ckpt"]) == 1
        if not killed:
            break
        calls += 1
    assert found == {"old", "new"} and calls > 6


def test_sha256sum_agrees(tmp_path):
    checksums.save(tmp_path / "a b.json", "{}")
    checksums.save(tmp_path / "metrics.csv", "step\n")
    done = subprocess.run(["sha256sum", "-c", checksums.NAME], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["a b.json: OK", "metrics.csv: OK"]


DAMAGE = {
    "its sha256 is not the one in SHA256SUMS beside it": lambda path: path.write_text("Old"),
    "it is missing": lambda path: path.unlink(),
    "it is a folder": lambda path: (path.unlink(), path.mkdir()),
    "it is not a regular file": lambda path: (path.unlink(), os.mkfifo(path)),
    "it has more than 100 bytes": lambda path: path.write_text("x" * 101),
    "it cannot be read: Too many levels of symbolic links": lambda path: (path.unlink(), path.symlink_to(path)),
}


@pytest.mark.parametrize("reason", DAMAGE)
def test_what_cannot_be_used_is_told_and_nothing_waits(tmp_path, reason):
    path = tmp_path / "record.json"
    checksums.save(path, "old")
    assert checksums.read(path, 100) == b"old"
    DAMAGE[reason](path)
    assert checksums.expected(path)
    with pytest.raises(atomic.Unreadable, match=reason):
        checksums.read(path, 100)


@pytest.mark.parametrize("damage", [b"\0\1", b"no sum  record.json\n", b"\xff" * 99, None])
def test_a_damaged_list_is_named_and_so_is_the_way_out(tmp_path, damage):
    path = tmp_path / "record.json"
    checksums.save(path, "old")
    listing = tmp_path / checksums.NAME
    listing.unlink()
    if damage is None:
        os.mkfifo(listing)
    else:
        listing.write_bytes(damage)
    told = r"SHA256SUMS.*delete it, and the files beside it are read unchecked"
    for call in (checksums.read, checksums.check, lambda path: checksums.save(path, "new")):
        with pytest.raises(checksums.Damaged, match=told):
            call(path)
    listing.unlink()
    assert checksums.read(path) == b"old" and not checksums.check(path)


def test_a_reader_beside_a_writer_sees_one_version_or_the_other(tmp_path):
    path = tmp_path / "best.ckpt"
    checksums.save(path, "0")
    if (child := os.fork()) == 0:
        for number in range(60):
            checksums.save(path, str(number))
        os._exit(0)
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        assert checksums.read(path).isdigit()
