"""Tests of sweeps: their plans and progress, and runs that fail, are killed or are locked by another sweep."""

import contextlib
import functools
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import yaml
from conftest import assert_error, until
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from server import write_folder
from support.records import GRID, SMOKE, config, expand, fail, finish, finish_each, sweep
from support.training import wait

from lra.config import CONF
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.io import lock
from lra.runs import record
from lra.sweep import __main__ as leader
from lra.sweep import job, launcher, plan, progress
from lra.sweep.estimate import START_SECONDS
from lra.sweep.launcher import Launcher
from lra.train.device import device_name
from lra.train.plan import make_plan

SWEEP = [sys.executable, "-m", "lra.sweep"]
start = functools.partial(subprocess.Popen, cwd=CONF.parent, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def four(tmp_path):
    """The planned runs of a small sweep, and its options."""
    return expand("selection", *GRID, runs=tmp_path), config("selection", f"runs={tmp_path}", *SMOKE, *GRID)


@pytest.mark.parametrize(("word", "extra"), [("ray", "ray"), ("submitit_slurm", "slurm"), ("submitit_local", "slurm")])
def test_missing_launcher_error_names_its_extra(word, extra, monkeypatch, call):
    # Installed launchers register themselves here.
    Plugins.instance()
    monkeypatch.delitem(ConfigStore.instance().repo["hydra"]["launcher"], f"{word}.yaml", raising=False)
    stop, *_ = call(leader.sweep, "sweep=selection", f"hydra/launcher={word}")
    assert stop == f"lra: hydra/launcher={word} is not installed: pip install -e '.[{extra}]'"


def test_run_folder_of_another_configuration_is_rejected(four, tmp_path):
    runs, options = four
    write_folder(runs[2].folder, {"config.yaml": b"optim.lr: 7\n"})
    # A folder without results is accepted.
    assert len(plan.expand(options, threads=None)[0]) == 4
    (runs[2].folder / "metrics.csv").touch()
    assert_error(r"was made by another configuration .*optim.lr: 7 -> 0.001", plan.expand, options, threads=None)


def test_plan_counts_remaining_runs_and_names_basis_of_estimate(four, tmp_path):
    runs, options = four
    text = "\n".join(plan.describe(runs, options, 1))
    assert "4 runs in" in text and "0 of them finished" in text and "4 left of 6 steps each, time unknown" in text
    # Checkpoints of 4 runs with 86,922 parameters, 16 bytes for each.
    assert f"about {max(1, round(4 * 16 * 86922 / 2**20))} MB" in text

    planned = make_plan(compose(Experiment, list(runs[0].overrides)))
    choices = planned.experiment.choices(planned.data.source.provenance)
    finish(runs[0], device=device_name("cpu"), step_ms=100.0, n_val=64)
    (runs[0].folder / "config.yaml").write_text(yaml.safe_dump(choices | {"optim.lr": 0.001}))
    rerun = plan.expand(options, threads=None)[0]
    # 6 steps of 100 ms, and 2 evaluations of 64 / 8 batches at a third of a step each.
    assert rerun[1].seconds == pytest.approx(0.1 * (6 + 2 * 8 / 3)) and rerun[1].basis == "record"
    assert rerun[2].seconds is None
    # Pretraining: 3 steps of half the batch, one more evaluation, and its own checkpoints.
    words = ("pretrain=masked", "pretrain.steps=3", "pretrain.batch=4", "pretrain.eval_every=3", "pretrain.warmup=0")
    composed = compose(Experiment, [*runs[0].overrides, *words])
    ((pretrained,), _) = plan.plan_seeds(composed, words, plan.Estimates(tmp_path, 0))
    assert pretrained.seconds == pytest.approx(rerun[1].seconds + 0.1 * (3 * 4 / 8 + 8 / 3))
    assert pretrained.disk > 1.9 * rerun[1].disk
    text = "\n".join(plan.describe(rerun, options, 2))
    for part in ("1 of them finished", "3 left", "1 by earlier runs", "2 like the others"):
        assert part in text
    assert plan.seconds(rerun[1:]) == pytest.approx(3 * (START_SECONDS + rerun[1].seconds))

    finish(runs[0], device="NVIDIA X", step_ms=100.0, n_val=64)
    assert plan.expand(options, threads=None)[0][1].seconds is None
    options = options.replace(measure=60)
    measured_runs = plan.expand(options, threads=None)[0]
    assert measured_runs[3].basis == "measured" and 0 < measured_runs[3].seconds < 600

    # sweep=board estimates further seeds from finished ones, which had as many threads.
    finish(runs[1])
    for threads in (2, 1):
        device = re.sub(r"\d+ threads", f"{threads} threads", device_name("cpu"))
        finish(runs[0], device=device, step_ms=100.0, n_val=64)
        assert plan.expand(options.replace(measure=0), threads=threads)[0][0].basis == "record"


def test_watch_reports_states_and_progress(four, capfd, monkeypatch):
    runs, _ = four
    monkeypatch.setattr(progress, "POLL_SECONDS", 0.01)
    finish(runs[0])
    assert [progress.state(run) for run in runs] == ["done", "left", "left", "left"]
    with progress.Watch(runs) as watch:
        assert watch.summary() == "1 of 4 done, 3 left"
        runs[1].folder.mkdir(parents=True)
        with lock.hold(runs[1].folder / lock.NAME):
            (runs[1].folder / "metrics.csv").write_text("step,val\n3,9.0\n")
            until(lambda: watch.states[runs[1]] == "running")
            # Half a run took 10 s; two and a half remain.
            watch.begin = time.monotonic() - 10
            assert re.fullmatch(r"1 of 4 done, 1 running, 2 left, (0:5\d|1:\d\d) to go", watch.summary())
            # In a new round, the work of the earlier ones does not count.
            watch.add([])
            assert watch.summary() == "1 of 4 done, 1 running, 2 left"
        finish(runs[1], status="diverged", steps=4, test=None)
        fail(runs[2], "no memory")
        until(lambda: watch.states[runs[2]] == "failed")
        finish(runs[3])
    err = capfd.readouterr().err
    assert "cur_sum seed 1: diverged at step 4; 1 of 4 done, 1 diverged" in err
    assert "cur_abs seed 0: failed, no memory; " in err and "cur_sum seed 0" not in err
    last = "listops cur_abs seed 1: test 37.00, validation 38.00 at step 100; 2 of 4 done, 1 diverged, 1 failed"
    assert err.splitlines()[-1].startswith(last)


def test_run_without_estimate_takes_mean_of_the_others(four):
    runs = [replace(run, seconds=value) for run, value in zip(four[0], (100.0, None, 300.0, None), strict=True)]
    write_folder(runs[1].folder, {"metrics.csv": b"step,val\n3,9.0\n"})
    watch = progress.Watch(runs)
    # 10 s for 100 of 100 + 200 / 2 + 300 + 200 seconds; 200 is the mean. The second run stopped half-way.
    watch.begin, watch.states[runs[0]] = time.monotonic() - 10, "done"
    assert re.fullmatch(r"1 of 4 done, 3 left, (0:59|1:0\d) to go", watch.summary())
    # A run that failed before its first evaluation has done no work.
    watch.states[runs[3]] = "failed"
    assert re.fullmatch(r"1 of 4 done, 1 failed, 2 left, (0:39|0:4\d) to go", watch.summary())


@pytest.mark.parametrize(
    ("status", "output", "reason"),
    [
        (1, "step 3\nlra: optim.lr must be above 0\n\n", "optim.lr must be above 0"),
        (1, "Traceback\nRuntimeError: no\n", "RuntimeError: no"),
        (-9, "step 3", "ended by SIGKILL, perhaps because memory ran out"), (-11, "", "ended by SIGSEGV"),
        (3, "", "exit status 3, no output"),
    ],
)  # fmt: skip
def test_failure_reason_is_read_from_status_and_output(status, output, reason):
    assert job.reason(status, output) == reason


def test_failed_runs_are_listed_with_reason_and_others_finish(tmp_path, monkeypatch, call):
    def launch(runs, *_):
        for run in runs:
            if run.label == "cur_sum":
                fail(run, f"no memory for {run.seed}")
            elif run.seed == 0:
                finish(run, status="diverged", steps=3, test=None)
            else:
                finish(run, files={"best.ckpt": "0" * 64})

    stop, report = sweep(monkeypatch, call, launch, f"runs={tmp_path}")
    assert stop == "lra: 2 of 4 runs failed; the same command tries them again"
    for seed in (0, 1):
        assert f"listops cur_sum seed {seed}: failed, no memory for {seed}\n  lra train task=listops" in report
    assert "cur_abs seed 0: diverged at step 3" in report and "1 of 4 done, 1 diverged, 2 failed" in report
    rerun = []
    repeat = finish_each(lambda run: rerun.append((run.label, run.seed)))
    stop, report = sweep(monkeypatch, call, repeat, f"runs={tmp_path}")
    assert stop is None and rerun == [("cur_sum", 0), ("cur_sum", 1)]
    assert "listops cur_sum: test 37.00 ± 0.00 (n = 2)\n" in report
    assert "cur_abs/seed-1: finished, but without best.ckpt; delete the folder" in report


def test_run_whose_folder_cannot_be_made_does_not_stop_the_others(tmp_path, monkeypatch, call):
    write_folder(tmp_path, {"sweep-selection-smoke/listops/cur_sum": b"a file"})
    stop, report = sweep(monkeypatch, call, finish_each(lambda run: None), f"runs={tmp_path}")
    assert stop.startswith("lra: 2 of 4 runs failed; make the folders of 2 of them writable, then the same command")
    assert "2 of 4 done, 2 failed" in report and report.count("seed 1: failed, its folder cannot be created") == 2
    monkeypatch.setattr(launcher, "fail", lambda *_: (_ for _ in ()).throw(ValueError("no space")))
    stop, report = sweep(monkeypatch, call, lambda *_: "a worker was killed", f"runs={tmp_path / 'full'}")
    assert stop.startswith("lra: 4 of 4 runs failed") and "failed, a worker was killed; no space\n" in report


def test_run_of_another_sweep_is_launched_after_that_sweep_dies(tmp_path, monkeypatch, call):
    rounds = []
    locked_dir = tmp_path / "sweep-selection-smoke" / "listops" / "cur_abs" / "seed-1"
    locked_dir.mkdir(parents=True)
    with contextlib.ExitStack() as other:
        other.enter_context(lock.hold(locked_dir / lock.NAME))

        def launch(runs, *_):
            rounds.append([(run.label, run.seed) for run in runs])
            if len(rounds) == 1:
                threading.Timer(0.3, other.close).start()
            for run in runs:
                finish(run)

        stop, _ = sweep(monkeypatch, call, launch, f"runs={tmp_path}")
    assert stop is None and rounds == [[("cur_sum", 0), ("cur_sum", 1), ("cur_abs", 0)], [("cur_abs", 1)]]


def test_failed_launcher_is_called_again_while_runs_finish(tmp_path, monkeypatch, call):
    rounds = []

    def launch(runs, *_):
        rounds.append(len(runs))
        if len(rounds) < 3:
            finish(runs[0])
        return "a worker was killed"

    stop, report = sweep(monkeypatch, call, launch, f"runs={tmp_path}")
    assert rounds == [4, 3, 2] and stop.startswith("lra: 2 of 4 runs failed")
    assert report.count("failed, a worker was killed\n") == 2

    # On a cluster, the other jobs may still be in the queue when the first one is lost.
    rounds.clear()
    monkeypatch.setattr(launcher, "workers", lambda: (None, None))
    stop, report = sweep(monkeypatch, call, launch, f"runs={tmp_path / 'cluster'}")
    assert rounds == [4, 3, 2, 2, 2] and stop.startswith("lra: 2 of 4 runs failed")
    assert report.count("lra: the launcher stopped: a worker was killed") == 3
    stop, _ = sweep(monkeypatch, call, None, f"runs={tmp_path}", "minutes=3")
    assert stop.startswith("lra: minutes is for runs on this machine")


def test_run_with_progress_but_no_result_is_launched_again(tmp_path, monkeypatch, call):
    rounds = []

    def launch(runs, *_):
        rounds.append(len(runs))
        for run in runs:
            if len(rounds) == 1:
                write_folder(run.folder, {"metrics.csv": b"step,val\n3,9.0\n"})
            else:
                finish(run)

    assert sweep(monkeypatch, call, launch, f"runs={tmp_path}")[0] is None and rounds == [4, 4]
    stop, _ = sweep(monkeypatch, call, launch, f"runs={__file__}/runs")
    assert stop.endswith("cannot be created: Not a directory") and rounds == [4, 4]


def test_interrupted_run_is_launched_again_with_the_same_overrides(tmp_path, monkeypatch, call):
    data_folders = []

    def interrupted(config, **_):
        data_folders.append(config.data.root)
        metrics = tmp_path / "sweep-selection-smoke/listops/cur_sum/seed-0/metrics.csv"
        metrics.write_text(f"step,val\n{min(6, 3 * len(data_folders))},9.0\n")
        raise RuntimeError("timed out")

    monkeypatch.setattr(launcher, "job", interrupted)
    words = ["sweep=selection", *SMOKE, "seeds=[0]", "sweep.grids.methods.attn=[cur_sum]", f"runs={tmp_path}"]
    _, _, report = call(leader.sweep, *words, "overrides=['data.root=/data/a (1)']")
    assert data_folders == ["/data/a (1)"] * 3 and "cur_sum seed 0: failed, timed out\n" in report


def test_free_space_is_measured_at_the_runs_folder(four, tmp_path, monkeypatch):
    # The folder may be the root of another disk.
    monkeypatch.setattr(plan.shutil, "disk_usage", lambda path: {tmp_path: SimpleNamespace(free=2**30)}[path])
    for folder in (tmp_path, tmp_path / "not" / "there"):
        assert "1.0 GB free" in plan.disk(four[0], four[1].replace(runs=folder))


def command(runs, *args, launcher="joblib"):
    return [*SWEEP, "sweep=selection", *SMOKE, *GRID, f"hydra/launcher={launcher}", f"runs={runs}", *args]


def finished(runs):
    """Times of the records of finished runs, by path."""
    return {path: path.stat().st_mtime_ns for path in runs.rglob(record.NAME)}


def owners(runs):
    """The processes that hold the lock of a run."""
    return [holder for holder in map(lock.holder, runs.rglob(lock.NAME)) if holder is not None]


def results(runs):
    """Count how often the log of each run says that it has finished, by run directory."""
    return Counter({str(log.parent): len(re.findall(r"seed \d: test", log.read_text())) for log in runs.rglob(job.LOG)})


@pytest.mark.slow
@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("launcher", ["basic", "joblib"])
def test_killed_sweep_resumes_without_repeating_runs(data_root, tmp_path, launcher, kill):
    words = ["hydra.launcher.n_jobs=2"] * (launcher == "joblib")
    args = command(tmp_path, "overrides=['optim.steps=60','optim.eval_every=6']", *words, launcher=launcher)
    first = start(args)
    wait(first, lambda: list(tmp_path.rglob(record.NAME)))
    first.send_signal(kill)
    _, err = first.communicate(timeout=90)
    assert first.returncode != 0
    assert kill == signal.SIGKILL or ("stopped, " in err and "the same command resumes" in err), err
    # The runs end with their sweep.
    until(lambda: not owners(tmp_path))
    initial = finished(tmp_path)
    assert 0 < len(initial) < 4
    rerun = start(args)
    _, err = rerun.communicate(timeout=600)
    assert rerun.returncode == 0 and "4 of 4 done" in err and initial.items() <= finished(tmp_path).items(), err
    report = results(tmp_path)
    assert len(report) == 4 and set(report.values()) <= {0, 1}
    # Killed between writing the record and logging the end.
    assert {folder for folder, times in report.items() if not times} <= {str(path.parent) for path in initial}


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "sweeps"), [("joblib", 2), ("submitit_local", 1), ("ray", 1)])
def test_concurrent_sweeps_and_each_launcher_finish_all_runs_once(launcher, sweeps, data_root, tmp_path):
    package = launcher.removesuffix("_local")
    pytest.importorskip(package, reason=f"{package} is in the extras slurm and ray")
    processes = [start(command(tmp_path, launcher=launcher)) for _ in range(sweeps)]
    for process in processes:
        _, err = process.communicate(timeout=600)
        assert process.returncode == 0 and "4 of 4 done" in err, err
    assert len(results(tmp_path)) == 4 and set(results(tmp_path).values()) == {1}


@pytest.mark.slow
def test_killed_run_is_listed_and_others_finish(data_root, tmp_path):
    process = start(command(tmp_path, "overrides=['optim.steps=60','optim.eval_every=6']"))
    wait(process, lambda: owners(tmp_path))
    os.kill(owners(tmp_path)[0].pid, signal.SIGKILL)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "failed, ended by SIGKILL, perhaps because memory ran out\n  lra train" in err
    assert "3 of 4 done, 1 failed" in err and err.splitlines()[-1].startswith("lra: 1 of 4 runs failed")


def test_window_starts_finishable_runs_first_and_skips_hopeless_ones(four, monkeypatch):
    monkeypatch.setattr(launcher, "START_SECONDS", 0.0)
    run = lambda seconds: replace(four[0][0], steps=100, eval_every=10, seconds=seconds)
    long, short, unknown, endless = map(run, (900, 100, None, 90_000))
    monkeypatch.setattr(launcher, "workers", lambda: (1, None))
    # 585 of the 600 seconds are for runs.
    limited = Launcher(config("selection", "minutes=10"))
    assert limited.select_startable([long, short, unknown, endless]) == [short, unknown, long]
    assert limited.end - limited.latest_start(long) == pytest.approx(90)
    assert limited.latest_start(unknown) == limited.end
    monkeypatch.setattr(launcher, "steps_done", lambda run: 50)
    assert limited.select_startable([long, short]) == [long, short]
    forever = Launcher(config("selection"))
    assert forever.select_startable([endless, short]) == [endless, short] and forever.latest_start(endless) == math.inf


def test_runs_of_a_machine_take_its_gpus_in_turn(tmp_path, monkeypatch):
    taken, process = [], SimpleNamespace(poll=lambda: 0, communicate=lambda: None, returncode=0)
    start = lambda *_, env, **__: taken.append(env["CUDA_VISIBLE_DEVICES"]) or process
    monkeypatch.setattr(job.subprocess, "Popen", start)
    monkeypatch.setattr(job, "overrides_of", lambda _: [])
    monkeypatch.setattr(job, "config_dir_flags", list)
    for number in range(3):
        runtime = SimpleNamespace(output_dir=str(tmp_path / str(number)))
        hydra = SimpleNamespace(runtime=runtime, job=SimpleNamespace(num=number))
        monkeypatch.setattr(job.HydraConfig, "get", lambda hydra=hydra: hydra)
        job.job(None, cwd=".", threads=1, gpus=["4", "6"], sweep=0, latest={})
    # A run past its latest start is not started.
    job.job(None, cwd=".", threads=1, gpus=["4", "6"], sweep=0, latest={str(tmp_path / "2"): time.time() - 1})
    assert taken == ["4", "6", "4"]


def test_sweep_stops_at_end_of_window_and_counts_remaining_runs(tmp_path, monkeypatch, call):
    launched_runs = []

    def launch(runs, *more):
        launched_runs.extend(runs)
        finish(runs[0])
        timer = more[-1].timer
        assert timer.is_alive() and 29 * 60 < timer.interval <= 30 * 60 - 15
        timer.function()
        time.sleep(60)

    stop, report = sweep(monkeypatch, call, launch, f"runs={tmp_path}", "minutes=30")
    assert stop is None and len(launched_runs) == 4
    assert "1 of 4 done" in report and "3 runs left; the same command resumes" in report
    stop, report = sweep(monkeypatch, call, finish_each(), f"runs={tmp_path}")
    assert stop is None and "4 of 4 done" in report and "left; the same" not in report
