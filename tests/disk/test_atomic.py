"""Replacement of files: a kill at any moment leaves one of two versions; what is no file is told, and nothing waits."""

import os
from pathlib import Path

import pytest

from lra.disk import atomic


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
def test_what_cannot_be_used_is_told_and_nothing_waits(tmp_path, reason):
    path = tmp_path / "record.json"
    path.write_text("old")
    assert atomic.content(path, 100) == b"old"
    DAMAGE[reason](path)
    with pytest.raises(atomic.Unreadable, match=reason):
        atomic.content(path, 100)


def test_a_copy_that_is_refused_stands_nowhere(tmp_path):
    def refuse(copy):
        assert copy.read_text() == "text"
        raise ValueError("no")

    (tmp_path / "a").write_text("text")
    with pytest.raises(ValueError, match="no"):
        atomic.copy(tmp_path / "a", tmp_path / "b", refuse)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_reader_beside_a_writer_sees_one_version_or_the_other(tmp_path):
    path = tmp_path / "best.ckpt"
    atomic.write(path, "0")
    if (child := os.fork()) == 0:
        for number in range(60):
            atomic.write(path, str(number))
        os._exit(0)
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        assert atomic.content(path).isdigit()
