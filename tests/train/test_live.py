"""The messages of a run: a live line in a terminal, plain lines elsewhere, and its last line."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import pytest
from support.training import seed_folder, smoke, start, train_config

from lra import console
from lra.live import live_line
from lra.train.plan import resolve

HIDDEN = b"\x1b[?25l"  # the cursor, which a killed process could not show again
ERASED = b"\x1b[2K"


@pytest.fixture
def terminal(monkeypatch):
    """Puts a terminal in place of stderr, and gives what reads from it."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:

        def begin():  # pytest sets its own stderr after the fixtures
            monkeypatch.setattr(sys, "stderr", stream)
            return whole

        def whole():
            """All that was written; a terminal hands it over in parts."""
            read = b""
            while select.select([ours], [], [], 0.5)[0]:
                read += os.read(ours, 2**16)
            return read

        yield begin
    os.close(ours)


def test_a_live_line_leaves_the_cursor_and_other_lines_alone(terminal):
    read = terminal()
    with live_line() as line:
        task = line.add_task("a [b] run", total=4, text="")
        line.update(task, completed=2, text="best 20.00")
        line.refresh()
        console.log("a word")
    drawn = read()
    assert b"a [b] run" in drawn and b"2/4" in drawn and b"best 20.00" in drawn and HIDDEN not in drawn
    assert ERASED in drawn[drawn.index(b"a word") :]  # what follows a line of the log is drawn anew, and then erased


WHOSE = {
    "of the background": ("os.tcgetpgrp", lambda _: os.getpgrp() + 1),
    "of a second process": ("lra.live.is_main_process", lambda: False),
    "of a launcher's worker": ("multiprocessing.parent_process", object),
}


@pytest.mark.parametrize("whose", WHOSE)
def test_a_terminal_of_several_processes_gets_plain_lines(terminal, whose, monkeypatch):
    terminal()
    assert not live_line().disable
    monkeypatch.setattr(*WHOSE[whose])
    assert live_line().disable


@pytest.mark.first
@pytest.mark.parametrize(
    "kill", [signal.SIGINT, *(pytest.param(s, marks=pytest.mark.slow) for s in (signal.SIGTERM, signal.SIGKILL))]
)
def test_a_run_that_is_stopped_leaves_the_terminal_in_order(data_root, tmp_path, kill):
    ours, theirs = pty.openpty()
    streams = {"stdin": subprocess.DEVNULL, "stdout": theirs, "stderr": theirs, "start_new_session": True}
    wide = os.environ | {"COLUMNS": "100", "TERM": "xterm"}
    process = start(tmp_path, "seeds=[0,1]", env=wide, **streams)
    os.close(theirs)
    said, sent, deadline = b"", False, time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            said += os.read(ours, 2**16)
        except OSError:  # the other end is closed
            break
        if b"best " in said and not sent:
            process.send_signal(kill)
            sent = True
    os.close(ours)
    assert process.wait(60) != 0
    live, _, last = said.decode().rpartition("\x1b[2K")
    shown = re.search(r"listops cur_abs seed 0 .*/60.* best \d+\.\d\d, \d+\.\d\d steps/s, \d+:\d\d left", live + last)
    assert shown and HIDDEN not in said and b"Traceback" not in said
    if kill != signal.SIGKILL:  # after which the line stays, at its end the cursor
        reset = r"(\x1b\[0m)?"  # colorama's at the exit, if numba finds it
        assert re.fullmatch(rf"lra: stopped at step \d+; the same command resumes from step \d+\r\n{reset}", last)


def test_lines_without_a_terminal_and_the_end_beside_the_control(data_root, tmp_path, capfd):
    words = ["seeds=[0,1]", "optim.steps=4", "optim.eval_every=2"]
    train_config(smoke(tmp_path, *words, attn="mean"))
    capfd.readouterr()
    train_config(smoke(tmp_path, *words))
    lines = capfd.readouterr().err.splitlines()
    score = r"\d+\.\d\d"
    steps = [line for line in lines if ": step " in line]
    assert len(steps) == 4  # one for each evaluation of each seed
    for line, step in zip(steps, (2, 4, 2, 4), strict=True):
        place = rf"seed \d: step {step}/4, validation {score}, best {score} at step [24]"
        assert re.search(rf"{place}, {score} steps/s, \d:\d\d left$", line), line
    assert re.search(
        rf"seed 1: test {score}, validation {score} at step [24]$", next(x for x in lines if "seed 1: test" in x)
    )
    gain = rf"test {score} ± {score} \(n = 2\), [+-]{score} over mean \(n = 2\)"
    report = f"lra report study=paper-smoke runs={tmp_path}"
    assert re.fullmatch(rf"listops cur_random: {gain}; {re.escape(report)}", lines[-1])


def test_the_time_left_counts_the_seeds_without_a_record(tmp_path):
    plan = resolve(smoke(tmp_path, "seeds=[0,1,2,3]"))
    seed_folder(tmp_path, seed=2).mkdir(parents=True)
    (seed_folder(tmp_path, seed=2) / "record.json").touch()
    assert [plan.more_seeds(seed) for seed in range(4)] == [2, 1, 1, 0]
