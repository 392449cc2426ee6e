"""Wrong words over every entry point: each ends with one line and leaves nothing behind, see ``wrong_words``."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import wrong_words
from support.commands import run

from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.train.__main__ import train

SEED, CASES = 0, 1
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


LISTOPS = "task=listops attn=sdpa "
REMEDIES = {
    LISTOPS + "optim.steps=120": "optim.eval_every must divide optim.steps 120, not 50; optim.warmup must be 0 or from "
    "2 to optim.steps - 1 (119), not 1000: add optim.eval_every=60 optim.warmup=12",
    "task=recall attn=sdpa optim.steps=120": "not 500: add optim.eval_every=120 optim.warmup=12",
    LISTOPS + "optim.steps=7 optim.warmup=0": "optim.steps 7, not 50: add optim.eval_every=7",
    LISTOPS + "pretrain=masked pretrain.steps=120 pretrain.warmup=0": "add pretrain.eval_every=60",
    "task=listops attn=custom attn._target_=lra.attention.sdpa.SDPA attn.dropout=0.5": "attn.dropout is not in the "
    "yaml of attn, but an option of lra.attention.sdpa.SDPA: add it by +attn.dropout=<value>",
    LISTOPS + "attn.droput=0.5": "attn.droput: no such key; attn has causal, dropout",
    "task=listops atn=sdpa": "atn: no such key; did you mean attn=?",
    "tsk=listops attn=sdpa": "tsk: no such key; did you mean task=?",
    "task=listops": "attn is missing; it must be one of bigbird, conv, ",
}


@pytest.mark.parametrize("words", REMEDIES)
def test_the_line_says_what_to_write_instead(words, tmp_path, monkeypatch, capfd):
    stop, _ = run(train, *words.split(), f"runs={tmp_path / 'runs'}", patch=monkeypatch, capfd=capfd)
    assert REMEDIES[words] in stop and "\n" not in stop and not (tmp_path / "runs").exists()


def test_the_corrected_words_are_taken(tmp_path):
    made = compose(Experiment, [*LISTOPS.split(), "optim.steps=120", "optim.eval_every=60", "optim.warmup=12"])
    assert made.optim.steps == 120


@pytest.mark.slow
def test_many_wrong_words():
    """In a process of its own, whose memory is bounded; it prints how many were tried and held."""
    command = [sys.executable, "wrong_words.py", "--seed", "1", "--cases", "60"]
    got = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
    print(got.stdout)
    *_, tried, held = (int(word) for word in re.findall(r"\d+", got.stdout.splitlines()[-1]))
    assert got.returncode == 0 and tried == held > 0, got.stdout
