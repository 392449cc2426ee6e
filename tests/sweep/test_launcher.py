"""A sweep with a limit of time: what is started, and what is left."""

import math
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.sweeps import config, finish, sweep

from lra.sweep import job, launcher, plan
from lra.sweep.launcher import Launcher


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
    assert "1 of 4 done" in said and "3 runs left, the same command resumes" in said
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
