"""The rows and details of each task: numbers against the statistics module, nothing left out or hidden."""

import re
import statistics
from collections import Counter

import pytest
from rich.console import Console
from support.records import TESTS, add, diverged, rows, table, texts

from lra.report import paper_tables, summary


def test_mean_and_deviation_are_over_finished_seeds_and_the_others_are_told(tmp_path):
    for seed, test in enumerate(TESTS):
        add(tmp_path, seed=seed, test=test, val=test + seed, step_ms=10.0 + seed**2)
    diverged(tmp_path, 123, seed=4)
    diverged(tmp_path, 9, label="lost")
    add(tmp_path, label="once")
    row = rows(tmp_path)["listops", "cur_abs"]
    assert row.test == pytest.approx(sum(TESTS) / 4)
    assert row.cell.std == pytest.approx(statistics.variance(TESTS) ** 0.5)
    assert row.val == pytest.approx(statistics.fmean(t + i for i, t in enumerate(TESTS)))
    assert (row.n, row.ms) == (4, 12.5)
    shown = {"test": "38.01 ± 1.50", "n": "4 (+1)", "val": "39.51", "ms": "12.5"}
    shown |= {"constant": "17.35", "params": "214,410", "details": "1 diverged at step 123"}
    lines = texts(table(tmp_path)["listops"])
    assert shown.items() <= lines["cur_abs"].items()
    assert (lines["once"]["test"], lines["once"]["n"]) == ("37.00", "1")
    assert (lines["lost"]["test"], lines["lost"]["n"]) == ("-", "0 (+1)")
    assert "1 diverged at step 9" in lines["lost"]["details"].split("; ")


def test_a_copy_counts_once_and_another_result_of_a_seed_is_told(tmp_path):
    for folder, test in ((".", 37.0), ("published", 37.0), ("again", 38.0)):
        add(tmp_path / folder, test=test, step_ms=len(folder))
    add(tmp_path, seed=1, test=40.0)
    row = rows(tmp_path)["listops", "cur_abs"]
    assert (row.n, row.remarks) == (2, ["2 different results of seed 0"])
    assert row.scores == {0: 37.5, 1: 40.0} and row.test == 38.75


def test_what_differs_within_a_row_is_told_in_it(tmp_path):
    add(tmp_path, label="softmax")
    add(tmp_path)
    add(tmp_path, seed=1, device="x86_64 CPU, 2 threads", budget="quick", steps=1500, constant_baseline=18.0, git=None)
    section = table(tmp_path)["listops"]
    lines = texts(section)
    assert lines["cur_abs"]["constant"] == "17.35 / 18.00"
    assert lines["cur_abs"]["details"].split("; ") == [
        "budget paper / quick",
        "1,500 / 5,000 steps",
        "NVIDIA H200 / x86_64 CPU, 2 threads",
        "commit 0123456789ab / unknown",
    ]
    assert "NVIDIA H200" in lines["softmax"]["details"].split("; ")
    assert section.about.startswith("Protocol paper; accuracy; 2,000 test examples.")
    assert section.about.endswith("Not comparable with the published values: budget paper / quick.")
    assert lines["cur_abs"]["published"] == "" != lines["softmax"]["published"]


def test_only_unchanged_labels_have_published_values(tmp_path):
    for label in ("cur_abs", "cur_abs-count=32-pinv.steps=6", "nystrom_original", "bigbird", "custom"):
        add(tmp_path, label=label)
    values = {label: cells["published"].split("\n") for label, cells in texts(table(tmp_path)["listops"]).items()}
    assert values["cur_abs"] == ["CURformer T1: 39.62", "CURformer T4: 39.62 ± 0.62"]
    assert "SOFT T12: 37.15" in values["nystrom_original"]
    assert values["bigbird"] == ["PSF T3 (Tay et al. 2020): 36.06", "leaderboard: 36.05", "FLARE++ T6: 36.05"]
    assert values["custom"] == values["cur_abs-count=32-pinv.steps=6"] == [""]


def test_runs_on_other_data_stand_beside_no_published_value(tmp_path):
    for seed, data in enumerate(("sha256 0123456789ab", None)):
        add(tmp_path, task="image", seed=seed, data=data)
        add(tmp_path, task="image", seed=seed, label="sdpa")
    add(tmp_path, task="text")
    tables = table(tmp_path)
    lines = texts(tables["image"])
    told = "data of another file than the official one (sha256 0123456789ab / the official)"
    assert told in lines["cur_abs"]["details"] and lines["cur_abs"]["published"] == ""
    assert "CURformer" not in lines["sdpa"]["details"] and lines["sdpa"]["published"]
    assert tables["image"].about.endswith("values: data sha256 0123456789ab / the official.")
    assert texts(tables["mean of text, image"])["cur_abs"]["published"] == ""
    ours = texts(paper_tables.table(paper_tables.PAPERS[0], summary.collect(tmp_path)[0]))["cur_abs"]
    assert (ours["text"], ours["image"]) == ("37.00", "")


def test_tasks_come_in_the_order_of_the_benchmark(tmp_path):
    for task in ("adding", "pathfinder", "image", "text", "listops", "retrieval"):
        add(tmp_path, task=task, metric="within_tolerance" if task == "adding" else "accuracy")
    titles = list(table(tmp_path))
    assert titles[:6] == ["listops", "text", "retrieval", "image", "pathfinder", "adding"]
    assert titles[6:] == ["mean of listops, text, retrieval, image, pathfinder"]


@pytest.mark.parametrize("width", [80, 50])
def test_nothing_is_cut_on_a_narrow_terminal(tmp_path, width):
    for seed in range(3):
        add(tmp_path, seed=seed, label="cur_abs-count=32-pinv.steps=6", params=214410 + seed)
    add(tmp_path, label="softmax")
    section = table(tmp_path)["listops"]
    console = Console(width=width, markup=False, highlight=False)
    with console.capture() as capture:
        console.print(section.terminal())
    shown = capture.get()
    assert max(map(len, shown.splitlines())) <= width
    content = "mechanismtestnvalconstantmsparams"
    for cells in texts(section).values():
        content += "".join(cells.values()).replace(": ", "")
    assert Counter(re.sub(r"[\s─]", "", shown)) == Counter(re.sub(r"\s", "", content))


def test_mistakes_are_told(tmp_path):
    with pytest.raises(ValueError, match="is not a folder"):
        summary.collect(tmp_path / "missing")
    with pytest.raises(ValueError, match=r"has no record of a training run; python -m lra.train makes them"):
        summary.collect(tmp_path)
    damaged = add(tmp_path)
    damaged.write_text("{")
    with pytest.raises(ValueError, match=r"that can be read .*record.json is not a record"):
        summary.collect(tmp_path)
    add(tmp_path, study="a")
    add(tmp_path, study="b")
    with pytest.raises(ValueError, match=r"no study 'c' in .*; there is a, b"):
        summary.collect(tmp_path, "c")
