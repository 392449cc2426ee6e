"""Wrong words over every entry point: each ends with one line and leaves nothing behind, see ``wrong_words``."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import wrong_words

SEED, CASES = 0, 2
QUICK = tuple(value for value in wrong_words.VALUES if "000000" not in value)  # nothing that could go on for long
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    made = tmp_path_factory.mktemp("wrong") / "home"
    wrong_words.prepared(made)
    return made


@pytest.mark.parametrize("name", [name for name in wrong_words.ENTRIES if name not in ("pretrained", "factorise")])
def test_wrong_words_end_in_one_line_and_leave_nothing(name, home):
    words = wrong_words.drawn(name, SEED, CASES, QUICK)
    cases = [wrong_words.tried(name, word, home) for word in words]
    assert not [(case.word, case.why) for case in cases if case.why]


def test_the_driver_sees_what_does_not_hold(home, monkeypatch):
    """A traceback, a file that is left behind, and a line without ``lra:``."""

    def entry():
        word = sys.argv[-1]
        if word == "a=1":
            raise TypeError("no line")
        if word == "b=1":
            Path("left").touch()
        sys.exit("lra: refused" if word in ("b=1", "d=1") else "refused")

    monkeypatch.setattr(wrong_words.Entry, "load", lambda self: entry)
    whys = {word: wrong_words.tried("bench", word, home).why for word in ("a=1", "b=1", "c=1", "d=1")}
    assert whys == {"a=1": "TypeError: no line", "b=1": "wrote left: lra: refused", "c=1": "said 'refused'", "d=1": ""}


@pytest.mark.slow
def test_many_wrong_words():
    """In a process of its own, whose memory is bounded; it prints how many were tried and held."""
    command = [sys.executable, "wrong_words.py", "--seed", "1", "--cases", "60"]
    got = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
    print(got.stdout)
    *_, tried, held = (int(word) for word in re.findall(r"\d+", got.stdout.splitlines()[-1]))
    assert got.returncode == 0 and tried == held > 0, got.stdout
