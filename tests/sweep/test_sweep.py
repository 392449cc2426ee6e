"""Sweeps: what they run, what they say before and meanwhile, what becomes of runs that fail, die or are held."""

import contextlib
import re
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import yaml
from conftest import MECHANISMS, until
from conftest import run as entry
from support.sweeps import SMOKE, config, expand, fail, finish, sweep

from lra.config import CONF
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.io import lock
from lra.sweep import __main__ as leader
from lra.sweep import job, plan, progress
from lra.sweep.estimate import START
from lra.train.device import device_name
from lra.train.plan import resolve

SWEEPS = sorted(path.stem for path in (CONF / "sweep").glob("*.yaml"))


@pytest.fixture
def four(tmp_path):
    """Two methods, two seeds."""
    words = ["seeds=[0,1]", "sweep.grids.methods.attn=[cur_sum,cur_abs]"]
    return expand("selection", *words, runs=tmp_path), config("selection", f"runs={tmp_path}", *SMOKE, *words)


def test_study_says_what_is_not_the_papers():
    assert plan.study(config("lr", "budget=quick", "protocol=clean")) == "sweep-lr-clean-quick"
    assert plan.study(config("lr", "study=mine")) == "mine"


@pytest.mark.parametrize("name", SWEEPS)
def test_every_value_of_every_axis_is_a_run_with_a_name_of_its_own(name):
    """All points have different words; those along the axes are built, mechanisms apart, which have their own tests."""
    made = config(name)
    points = plan.points(made.sweep)
    assert len({tuple(point) for point in points}) == len(points)
    small = config(name, *SMOKE, "seeds=[3]")
    for key, grid in made.sweep.grids.items():
        axes = {axis: list(values) for axis, values in grid.items()}
        assert set(axes["attn"]) <= set(MECHANISMS)
        axes["attn"] = axes["attn"][:1]
        for axis, values in axes.items():
            one = {other: some[:1] for other, some in axes.items()} | {axis: values}
            swept = small.replace(sweep=small.sweep.replace(grids={key: one}))
            assert len(plan.expand(swept, threads=None)[0]) == len(values)


def test_lr_gives_each_of_the_baselines_the_same_rates():
    rates = {}
    for point in plan.points(config("lr").sweep):
        words = dict(word.split("=", 1) for word in point)
        rates.setdefault(words["attn"], []).append(float(words["optim.lr"]))
    assert list(rates) == list(config("baselines").sweep.grids["methods"]["attn"])
    assert set(map(tuple, rates.values())) == {(1e-4, 3e-4, 1e-3, 3e-3)}


def test_a_mechanism_that_cannot_run_here_is_left_out_with_a_line(monkeypatch):
    missing = property(lambda made: f"attn={made.label} needs a GPU" if "sum" in made.label else None)
    monkeypatch.setattr(Experiment, "unavailable", missing)
    runs, skipped = plan.expand(config("selection", *SMOKE), threads=None)
    assert skipped == ["listops: attn=cur_sum needs a GPU"] and "cur_sum" not in {run.label for run in runs}


def test_what_a_task_is_too_short_for_is_left_out_with_a_line():
    words = ["budget=quick", "tasks=[listops]", "measure=0"]  # 32 tokens
    runs, skipped = plan.expand(config("count", *words), threads=None)
    assert {run.label.partition("=")[2] for run in runs} == {"16", "32"}
    assert len(skipped) == 8 and skipped[0] == "listops: attn.count must be from 1 to 32 (length), not 64"
    with pytest.raises(ValueError, match=r"^listops: attn.count must be from 1 to 32"):
        more = ["+sweep.grids.mine={attn:[cur_abs],attn.count:[64]}", "~sweep.grids.methods"]
        plan.expand(config("selection", *words, *more), threads=None)


def test_options_of_the_protocol_are_those_of_the_runs():
    runs = expand("selection", "protocol.mean_over=real", "protocol=clean")
    assert {"protocol=clean", "protocol.mean_over=real"} <= set(runs[0].overrides)
    assert compose(Experiment, runs[0].overrides).protocol.mean_over == "real"


@pytest.mark.parametrize(("word", "extra"), [("ray", "ray"), ("submitit_slurm", "slurm"), ("submitit_local", "slurm")])
def test_a_launcher_that_is_not_installed_names_its_extra(word, extra, monkeypatch, capfd):
    from hydra.core.config_store import ConfigStore
    from hydra.core.plugins import Plugins

    Plugins.instance()  # launchers that are installed have entered themselves
    monkeypatch.delitem(ConfigStore.instance().repo["hydra"]["launcher"], f"{word}.yaml", raising=False)
    stop, _ = entry(leader.sweep, "sweep=selection", f"hydra/launcher={word}", patch=monkeypatch, capfd=capfd)
    assert stop == f"lra: hydra/launcher={word} is not installed: pip install '.[{extra}]'"


def test_a_folder_of_another_configuration_is_refused_before_anything_runs(four, tmp_path):
    runs, made = four
    runs[2].folder.mkdir(parents=True)
    (runs[2].folder / "config.yaml").write_text(yaml.safe_dump({"optim.lr": 7}))
    assert len(plan.expand(made, threads=None)[0]) == 4  # nothing was made by it yet
    (runs[2].folder / "metrics.csv").touch()
    with pytest.raises(ValueError, match=r"was made by another configuration .*optim.lr: 7 -> 0.001"):
        plan.expand(made, threads=None)


def test_plan_counts_what_is_left_and_says_what_its_time_is_based_on(four, tmp_path):
    runs, made = four
    text = "\n".join(plan.describe(runs, made, 1))
    assert "4 runs in" in text and "0 of them finished" in text and "4 left of 6 steps each, time unknown" in text
    assert f"about {max(1, round(4 * 16 * 86922 / 2**20))} MB" in text

    planned = resolve(compose(Experiment, list(runs[0].overrides)))
    written = planned.experiment.choices(planned.data.source.provenance)
    finish(runs[0], device=device_name("cpu"), step_ms=100.0, n_val=64)
    (runs[0].folder / "config.yaml").write_text(yaml.safe_dump(written | {"optim.lr": 0.001}))
    again = plan.expand(made, threads=None)[0]
    # 6 steps of 100 ms, and 2 evaluations of 64 / 8 batches at a third of a step each
    assert again[1].seconds == pytest.approx(0.1 * (6 + 2 * 8 / 3)) and again[1].basis == "record"
    assert again[2].seconds is None  # another method has another cost
    text = "\n".join(plan.describe(again, made, 2))
    assert (
        "1 of them finished" in text
        and "3 left" in text
        and "1 by earlier runs" in text
        and "2 like the others" in text
    )
    assert plan.seconds(again[1:]) == pytest.approx(3 * (START + again[1].seconds))  # each starts a process

    finish(runs[0], device="NVIDIA X", step_ms=100.0, n_val=64)
    assert plan.expand(made, threads=None)[0][1].seconds is None
    made = made.replace(measure=60)
    measured = plan.expand(made, threads=None)[0]
    assert measured[3].basis == "measured" and 0 < measured[3].seconds < 600

    for run in runs[:2]:
        finish(run, device=device_name("cpu"), step_ms=100.0, n_val=64)
    assert plan.expand(made, threads=None)[0][0].basis == "record"  # sweep=board makes further seeds of finished ones


DEV_SIZES = {
    "task=listops budget=paper": 2_000,
    "task=text budget=paper": 25_000,
    "task=text budget=paper protocol.hold_out=5000": 5_000,
    "task=retrieval budget=paper": 18_090,
    "task=image budget=quick": 500,
    "task=genome": None,
}


@pytest.mark.parametrize("words", DEV_SIZES)
def test_the_size_of_dev_is_known_before_the_data(words):
    assert compose(Experiment, [*words.split(), "attn=mean"]).data_source().dev_size == DEV_SIZES[words]


def test_states_and_lines(four, capfd, monkeypatch):
    runs, _ = four
    monkeypatch.setattr(progress, "EVERY", 0.01)
    finish(runs[0])
    assert [progress.state(run) for run in runs] == ["done", "left", "left", "left"]
    with progress.Watch(runs) as watch:
        assert watch.summary() == "1 of 4 done, 3 left"
        runs[1].folder.mkdir(parents=True)
        with lock.hold(runs[1].folder / lock.NAME):
            (runs[1].folder / "metrics.csv").write_text("step,val\n3,9.0\n")
            until(lambda: watch.states[runs[1]] == "running")
            watch.begin = time.monotonic() - 10  # half a run in 10 s, two and a half to go
            assert re.fullmatch(r"1 of 4 done, 1 running, 2 left, (0:5\d|1:\d\d) to go", watch.summary())
            watch.add([])  # a further round: the work of the earlier ones took none of its time
            assert watch.summary() == "1 of 4 done, 1 running, 2 left"
        finish(runs[1], status="diverged", steps=4, test=None)
        fail(runs[2], "no memory")
        until(lambda: watch.states[runs[2]] == "failed")
        finish(runs[3])
    err = capfd.readouterr().err
    assert "cur_sum seed 1: diverged at step 4; 1 of 4 done, 1 diverged" in err
    assert "cur_abs seed 0: failed, no memory; " in err and "cur_sum seed 0" not in err
    assert err.splitlines()[-1].startswith(
        "listops cur_abs seed 1: test 37.00, validation 38.00 at step 100; 2 of 4 done, 1 diverged, 1 failed"
    )


def test_a_run_without_an_estimate_weighs_as_the_mean_of_the_others(four):
    seconds = (100.0, None, 300.0, None)
    runs = [replace(run, seconds=value) for run, value in zip(four[0], seconds, strict=True)]
    watch = progress.Watch(runs)
    watch.begin, watch.states[runs[0]] = time.monotonic() - 10, "done"  # 100 of 100 + 200 + 300 + 200 in 10 s
    assert re.fullmatch(r"1 of 4 done, 3 left, 1:1\d to go", watch.summary())


def test_reasons():
    assert job.reason(1, "step 3\nlra: optim.lr must be above 0\n\n") == "optim.lr must be above 0"
    assert job.reason(1, "Traceback\nRuntimeError: no\n") == "RuntimeError: no"
    assert job.reason(-9, "step 3") == "ended by SIGKILL, perhaps because memory ran out"
    assert job.reason(-11, "") == "ended by SIGSEGV" and job.reason(3, "") == "exit status 3, no output"


def test_failed_runs_stop_no_other_and_are_listed_with_their_reason(tmp_path, monkeypatch, capfd):
    def launch(runs, *_):
        for run in runs:
            if run.label == "cur_sum":
                fail(run, f"no memory for {run.seed}")
            elif run.seed == 0:
                finish(run, status="diverged", steps=3, test=None)
            else:
                finish(run)

    stop, said = sweep(monkeypatch, capfd, launch, f"runs={tmp_path}")
    assert stop == "lra: 2 of 4 runs failed; the same command tries them again"
    for seed in (0, 1):
        assert f"listops cur_sum seed {seed}: failed, no memory for {seed}\n  lra train task=listops" in said
    assert "cur_abs seed 0: diverged at step 3" in said and "1 of 4 done, 1 diverged, 2 failed" in said
    again = []
    launch = lambda runs, *_: [(again.append((run.label, run.seed)), finish(run)) for run in runs] and None
    stop, said = sweep(monkeypatch, capfd, launch, f"runs={tmp_path}")
    assert stop is None and again == [("cur_sum", 0), ("cur_sum", 1)]
    assert "listops cur_sum: test 37.00 ± 0.00 (n = 2)\n" in said


def test_what_another_sweep_is_at_is_waited_for_and_launched_when_that_dies(tmp_path, monkeypatch, capfd):
    rounds = []
    held = tmp_path / "sweep-selection-smoke" / "listops" / "cur_abs" / "seed-1"
    held.mkdir(parents=True)
    with contextlib.ExitStack() as other:
        other.enter_context(lock.hold(held / lock.NAME))

        def launch(runs, *_):
            rounds.append([(run.label, run.seed) for run in runs])
            if len(rounds) == 1:
                threading.Timer(0.3, other.close).start()  # the other sweep goes on for a while and dies
            for run in runs:
                finish(run)

        stop, _ = sweep(monkeypatch, capfd, launch, f"runs={tmp_path}")
    assert stop is None and rounds == [[("cur_sum", 0), ("cur_sum", 1), ("cur_abs", 0)], [("cur_abs", 1)]]


def test_a_launcher_that_gives_up_is_asked_again_as_long_as_something_comes_of_it(tmp_path, monkeypatch, capfd):
    rounds = []

    def launch(runs, *_):
        rounds.append(len(runs))
        if len(rounds) < 3:
            finish(runs[0])
        return "a worker was killed"

    stop, said = sweep(monkeypatch, capfd, launch, f"runs={tmp_path}")
    assert rounds == [4, 3, 2] and stop.startswith("lra: 2 of 4 runs failed")
    assert said.count("failed, a worker was killed\n") == 2


def test_the_free_space_is_that_of_the_folder_of_the_runs(four, tmp_path, monkeypatch):
    """The folder may be the root of a disk of its own."""
    monkeypatch.setattr(plan.shutil, "disk_usage", lambda path: {tmp_path: SimpleNamespace(free=2**30)}[path])
    for folder in (tmp_path, tmp_path / "not" / "there"):
        assert "1.0 GB free" in plan.disk(four[0], four[1].replace(runs=folder))
