"""Errors over length: the runs of the grid, the points of runs and of the paper, the picture, failures."""

import csv
from dataclasses import replace

from conftest import run as entry
from support.records import RECORD
from support.sweeps import finish

from lra.studies.lengths import __main__ as show
from lra.studies.lengths.__main__ import lengths
from lra.sweep import job
from lra.sweep.launcher import Launcher

FEW = ("lengths=[128,256]", "mechanisms=[mean,linear]", "seeds=[0]", "tasks=[temporal_order]", "budget=smoke")


def made(task, label="mean", seed=0, test=40.0, **changes):
    values = {"task": task, "label": label, "seed": seed, "test": test, "constant_baseline": 25.0}
    return replace(RECORD, **values | changes)


def test_points_are_by_task_length_and_mechanism():
    records = [
        *(made("adding_N256", seed=seed, test=test) for seed, test in ((0, 40.0), (1, 60.0))),
        made("adding_N128", seed=2, test=None, status="diverged"),
        made("temporal_order_N128", "linear"),
        made("listops"),
        made("recall_N64_K4"),
    ]
    found = show.measured(records)
    assert found[["task", "length", "mechanism", "seed", "constant"]].to_numpy().tolist() == [
        ["adding", 128, "mean", 2, 75.0],
        ["adding", 256, "mean", 0, 75.0],
        ["adding", 256, "mean", 1, 75.0],
        ["temporal_order", 128, "linear", 0, 75.0],
    ]
    assert found.error.fillna(-1).tolist() == [-1, 60.0, 40.0, 60.0]


def test_printed_numbers_are_errors_of_the_text():
    known = {(n.task, n.attn, n.length): n.error for n in show.printed().itertuples()}
    assert known["adding", "linformer", 512] == 0.48 and known["adding", "performer", 4096] == 28.24
    assert known["temporal_order", "softmax", 16384] == 8.38 and known["temporal_order", "psf", 16384] == 0.11
    psf = {length: error for (task, attn, length), error in known.items() if (task, attn) == ("adding", "psf")}
    assert psf == {2**k: 0 for k in range(7, 15)}


def test_the_picture_has_what_was_measured_and_what_is_published():
    tests = {("sdpa", 0): 90.0, ("sdpa", 1): 80.0, ("mean", 0): 30.0}
    records = [made(f"adding_N{n}", *run, test=test) for n in (128, 512) for run, test in tests.items()]
    records.append(made("adding_N512", "mean", 1, None, status="diverged"))
    some = show.measured(records)
    figure = show.draw(some, show.printed())
    (axes,) = figure.axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines["sdpa"].get_ydata()) == [15.0, 15.0] and list(lines["mean"].get_ydata()) == [70.0, 70.0]
    assert list(lines["best constant answer"].get_ydata()) == [75.0, 75.0] and axes.get_xscale() == "log"
    ranges = [path.vertices[:, 1].tolist() for part in axes.collections for path in part.get_paths()]
    assert ranges == [[70.0, 70.0]] * 2 + [[10.0, 20.0]] * 2
    published = lines["Transformer, published"]
    assert list(published.get_xdata()) == [2048] and list(published.get_ydata()) == [84.48]
    assert published.get_color() == lines["sdpa"].get_color() and published.get_markerfacecolor() == "none"
    assert "n = 1 to 2 a point" in show.caption(some) and "1 run diverged" in show.caption(some)


def swept(monkeypatch, capfd, launch, runs, *words):
    monkeypatch.setattr(Launcher, "launch", lambda _, runs: launch(runs))
    return entry(lengths, *FEW, "measure=0", f"runs={runs}", *words, patch=monkeypatch, capfd=capfd)


def test_runs_that_ended_are_drawn_though_another_failed(tmp_path, monkeypatch, capfd):
    def launch(runs, *_):
        for run in runs:
            run.folder.mkdir(parents=True)
            if run.label == "linear":
                job.fail(run.folder, "no memory")
            else:
                finish(run)

    home = tmp_path / "sweep-lengths-smoke"
    stop, _ = swept(monkeypatch, capfd, None, tmp_path, "plan=true")
    assert stop is None and not list(tmp_path.iterdir())
    stop, said = swept(monkeypatch, capfd, launch, tmp_path)
    assert stop == "lra: 2 of 4 runs failed; the same command tries them again" and "no memory" in said
    lines = (home / "lengths.csv").read_text().splitlines()
    rows = [row for row in csv.DictReader(lines) if row["source"] == "measured"]
    assert [(row["mechanism"], row["length"], float(row["error"])) for row in rows] == [
        ("mean", length, 100 - RECORD.test) for length in ("128", "256")
    ]
    assert (home / "lengths.png").stat().st_size > 10_000
