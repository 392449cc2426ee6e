"""Launchers: whole sweeps that are killed and started again, and a sweep with a time limit."""

import functools
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.sweeps import SMOKE, config, finish, sweep
from support.training import wait

from lra.config import CONF
from lra.io import lock
from lra.runs import record
from lra.sweep import job, launcher, plan
from lra.sweep.launcher import Launcher


def command(runs, *words, launcher="joblib", attn="cur_sum,cur_abs", seeds="0,1"):
    grid = [f"seeds=[{seeds}]", f"sweep.grids.methods.attn=[{attn}]", f"hydra/launcher={launcher}"]
    return [sys.executable, "-m", "lra.sweep", "sweep=selection", *SMOKE, *grid, f"runs={runs}", *words]


start = functools.partial(subprocess.Popen, cwd=CONF.parent, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def results(runs):
    """The number of times that each run said that it was done, by its folder."""
    return Counter({str(log.parent): len(re.findall(r"seed \d: test", log.read_text())) for log in runs.rglob(job.LOG)})


@pytest.mark.slow
@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("launcher", ["basic", "joblib"])
def test_killed_sweep_goes_on_and_no_run_is_done_twice(data_root, tmp_path, launcher, kill):
    words = command(tmp_path, "overrides=['optim.steps=60','optim.eval_every=6']", launcher=launcher)
    first = start(words)
    wait(first, lambda: list(tmp_path.rglob(record.NAME)))
    first.send_signal(kill)
    _, err = first.communicate(timeout=90)
    assert first.returncode != 0
    assert kill == signal.SIGKILL or ("stopped, " in err and "the same command resumes" in err), err
    while any(lock.holder(path) for path in tmp_path.rglob(lock.NAME)):  # the runs end with their sweep
        time.sleep(0.1)
    finished = {path: path.stat().st_mtime_ns for path in tmp_path.rglob(record.NAME)}
    assert 0 < len(finished) < 4
    again = start(words)
    _, err = again.communicate(timeout=600)
    assert again.returncode == 0 and "4 of 4 done" in err, err
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in finished.items())
    said = results(tmp_path)
    assert len(said) == 4 and set(said.values()) <= {0, 1}
    silent = {folder for folder, times in said.items() if not times}  # killed between its record and its last line
    assert silent <= {str(path.parent) for path in finished}


@pytest.mark.slow
def test_two_sweeps_at_once_share_the_runs(data_root, tmp_path):
    two = [start(command(tmp_path)) for _ in range(2)]
    for process in two:
        _, err = process.communicate(timeout=600)
        assert process.returncode == 0 and "4 of 4 done" in err, err
    assert len(results(tmp_path)) == 4 and set(results(tmp_path).values()) == {1}


@pytest.mark.slow
def test_a_run_that_is_killed_is_listed_and_the_others_end(data_root, tmp_path):
    process = start(command(tmp_path, "overrides=['optim.steps=60','optim.eval_every=6']"))
    owner = None
    while owner is None and process.poll() is None:
        owner = next(filter(None, map(lock.holder, tmp_path.rglob(lock.NAME))), None)
        time.sleep(0.05)
    os.kill(owner.pid, signal.SIGKILL)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "failed, ended by SIGKILL, perhaps because memory ran out\n  lra train" in err
    assert "3 of 4 done, 1 failed" in err and err.splitlines()[-1].startswith("lra: 1 of 4 runs failed")


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "package"), [("submitit_local", "submitit"), ("ray", "ray")])
def test_other_launchers(launcher, package, data_root, tmp_path):
    pytest.importorskip(package, reason=f"{package} is in the extras slurm and ray")
    process = start(command(tmp_path, launcher=launcher))
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0 and "4 of 4 done" in err, err
    assert set(results(tmp_path).values()) == {1}


def run(name, seconds, steps=100, eval_every=10):
    return plan.PlannedRun(
        overrides=(), task="t", label=name, seed=0, folder=Path("none", name), steps=steps, eval_every=eval_every,
        disk=0, seconds=seconds,
    )  # fmt: skip


def test_what_reaches_its_end_comes_first_and_what_reaches_no_checkpoint_is_left(monkeypatch):
    monkeypatch.setattr(launcher, "START", 0.0)
    long, short, unknown, endless = run("long", 900), run("short", 100), run("unknown", None), run("endless", 90_000)
    monkeypatch.setattr(launcher, "workers", lambda: (1, None))
    limited = Launcher(config("selection", "minutes=10"))  # 585 seconds before the end
    assert limited.worth([long, short, unknown, endless]) == [short, unknown, long]
    assert limited.end - limited.latest(long) == pytest.approx(90) and limited.latest(unknown) == limited.end
    monkeypatch.setattr(launcher, "steps", lambda run: 50)
    assert limited.worth([long, short]) == [long, short]
    forever = Launcher(config("selection"))
    assert forever.worth([endless, short]) == [endless, short] and forever.latest(endless) == math.inf


def test_the_sweep_stops_at_the_end_of_its_window_and_says_what_is_left(tmp_path, monkeypatch, capfd):
    begun = []

    def launch(runs, *more):
        begun.extend(runs)
        finish(runs[0])
        more[-1]._stop()  # what its timer calls
        time.sleep(60)

    stop, said = sweep(monkeypatch, capfd, launch, f"runs={tmp_path}", "minutes=30")
    assert stop is None and len(begun) == 4
    assert "1 of 4 done" in said and "3 runs left; the same command resumes" in said
    stop, said = sweep(monkeypatch, capfd, lambda runs, *_: [finish(run) for run in runs] and None, f"runs={tmp_path}")
    assert stop is None and "4 of 4 done" in said and "left, the same" not in said


def test_minutes_are_not_for_a_cluster(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(launcher, "workers", lambda: (None, None))
    stop, _ = sweep(monkeypatch, capfd, None, f"runs={tmp_path}", "minutes=3")
    assert stop.startswith("lra: minutes is for runs on this machine")


def test_a_run_whose_time_has_passed_is_not_started(tmp_path, monkeypatch):
    hydra = SimpleNamespace(runtime=SimpleNamespace(output_dir=str(tmp_path)))
    monkeypatch.setattr(job.HydraConfig, "get", lambda: hydra)
    monkeypatch.setattr(job.subprocess, "Popen", None)
    job.job(None, cwd=".", threads=1, gpus=[], sweep=0, latest={str(tmp_path): time.time() - 1})
    assert not list(tmp_path.iterdir())
