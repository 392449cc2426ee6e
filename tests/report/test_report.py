"""The tables: numbers against the statistics module, published values against the papers, nothing left out."""

import json
import re
import statistics
import subprocess
import sys
from collections import Counter
from html import escape
from pathlib import Path

import pytest
from rich.console import Console
from support.records import TESTS, add, diverged, rows, table, texts

from lra.config import CONF
from lra.report import paper_tables, published, rates, results, summary
from lra.report.export import export
from lra.report.table import Cell, Table, frame, stem


def markdown(runs, out):
    export(out, *summary.collect(runs))
    return (out / "report.md").read_text()


def test_mean_deviation_and_number_of_seeds(tmp_path):
    for seed, test in enumerate(TESTS):
        add(tmp_path, seed=seed, test=test, val=test + seed, step_ms=10.0 + seed**2)
    row = rows(tmp_path)["listops", "cur_abs"]
    assert row.test == pytest.approx(sum(TESTS) / 4)
    assert row.std == pytest.approx(statistics.variance(TESTS) ** 0.5)
    assert row.dev == pytest.approx(statistics.fmean(t + i for i, t in enumerate(TESTS)))
    assert (row.n, row.ms) == (4, 12.5)
    shown = {"test": "38.01 ± 1.50", "n": "4", "dev": "39.51", "constant": "17.35", "ms": "12.5", "params": "214,410"}
    (cells,) = texts(table(tmp_path)["listops"]).values()
    assert shown.items() <= cells.items()


def test_one_seed_has_no_deviation(tmp_path):
    add(tmp_path)
    cells = texts(table(tmp_path)["listops"])["cur_abs"]
    assert (cells["test"], cells["n"]) == ("37.00", "1")


def test_diverged_seeds_are_not_averaged_and_not_hidden(tmp_path):
    for seed, test in enumerate(TESTS):
        add(tmp_path, seed=seed, test=test)
    diverged(tmp_path, 123, seed=4)
    diverged(tmp_path, 9, label="softmax")
    lines = texts(table(tmp_path)["listops"])
    assert (lines["cur_abs"]["test"], lines["cur_abs"]["n"]) == ("38.01 ± 1.50", "4 (+1)")
    assert lines["cur_abs"]["details"] == "1 diverged at step 123"
    assert (lines["softmax"]["test"], lines["softmax"]["n"]) == ("-", "0 (+1)")
    assert "1 diverged at step 9" in lines["softmax"]["details"].split("; ")


def test_collapsed_seeds_are_told_beside_every_mean(tmp_path):
    for seed, test in enumerate((17.0, 60.0, 17.0, 64.0, 17.0)):
        add(tmp_path, seed=seed, test=test, collapsed=test == 17, budget="quick")
        add(tmp_path, seed=seed, test=20.0 + seed, label="mean", collapsed=False, budget="quick")
        add(tmp_path, seed=seed, test=50.0 + seed, task="image", budget="quick")
        add(tmp_path, seed=seed, test=17.0, label="cur_abs-optim.lr=1e-2", collapsed=True, budget="quick")
    lines = texts(table(tmp_path)["listops"])["cur_abs"]
    assert lines["test"] == "35.00 ± 24.69 (collapsed 3/5)" and lines["n"] == "5"
    assert "collapsed 3/5, others 62.00" in lines["details"].split("; ")
    studies = summary.collect(tmp_path)[0]["paper-paper"]
    board = results.results("quick", studies)
    assert texts(board)["cur_abs"]["listops"] == "35.00 ± 24.69 (collapsed 3/5)"
    assert texts(board)["cur_abs"]["mean"].endswith(" (collapsed 3/10)")
    assert "collapsed" not in texts(board)["mean"]["listops"] and results.COLLAPSED in board.about
    assert board.numbers().set_index("mechanism").loc["cur_abs", "listops collapsed"] == 3
    over = texts(results.over_control("quick", studies))["cur_abs"]["listops"]
    assert over.startswith("+13.00 ± ") and over.endswith(" (collapsed 3/5)")
    tried = rates.rates("quick", studies)
    assert "1e-2 38.00 (collapsed 5/5)" in texts(tried)["cur_abs"]["dev at each rate"]
    assert "over the 2 that did not collapse" in rows(tmp_path)["listops", "cur_abs"].cell.note


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
    by_study = summary.collect(tmp_path, None)[0]
    row = {(row.task, row.label): row for row in by_study["paper-paper"]}
    assert row["image", "cur_abs"].published == [] != row["text", "cur_abs"].published
    ours = [
        cells
        for (_, label, _), cells in paper_tables.table(paper_tables.PAPERS[0], by_study).rows()
        if label == "cur_abs"
    ]
    assert [cell.text for cells in ours for cell in cells].count("37.00") == 1


def test_published_file():
    everything = published.read()
    assert len(everything) == 904
    names = [name for row in everything for name in row.attn.split()]
    assert {name.partition("+")[0] for name in names} <= {path.stem for path in (CONF / "attn").glob("*.yaml")}
    assert {name.partition("+")[2] for name in names} == {"", "masked", "next"}
    printed = {(row.source, row.model, row.task, row.metric): row.text for row in everything}
    assert printed["leaderboard", "Local Att", "pathfinder_x", "accuracy_percent"] == "FAIL"
    assert printed["PSF T3", "PSF-Attn", "pathfinder", "accuracy_percent"] == "80.49 ± 0.1"
    assert printed["SOFT T12", "SOFT", "image", "accuracy_percent"] == "46.91"
    assert {row.value for row in published.accuracies("softmax", ["genome", "average"])} == set()
    assert [row.value for row in published.accuracies("sdpa", ["text"])] == ["63.9"]


def test_averages_name_their_tasks_and_compare_like_with_like(tmp_path):
    for task, test in (("text", 60.0), ("listops", 40.0), ("image", 44.0)):
        add(tmp_path, task=task, test=test)
        add(tmp_path, task=task, test=test + 1, label="cur_abs-count=8")
    add(tmp_path, label="softmax", test=36.0)
    add(tmp_path, label="softmax", task="text", test=65.0)
    diverged(tmp_path, 5, label="softmax", task="image")
    add(tmp_path, label="sdpa", budget="quick")
    means = {title: section for title, section in table(tmp_path).items() if title.startswith("mean")}
    assert list(means) == ["mean of listops, text, image", "mean of listops, text"]
    three, two = map(texts, means.values())
    assert {label: cells["mean"] for label, cells in three.items()} == {"cur_abs": "48.00", "cur_abs-count=8": "49.00"}
    assert three["cur_abs"]["published"] == "CURformer T1: 50.71\nCURformer T4: 50.71"
    assert {label: cells["mean"] for label, cells in two.items()} == {"softmax": "50.50"}
    assert two["softmax"]["details"] == "no finished seed on image"
    assert "leaderboard: 50.32" in two["softmax"]["published"].split("\n")


def test_published_average_needs_every_task():
    assert published.averages("bigbird", ["listops", "pathfinder_x"]) == []
    assert published.averages("transformer_ls", ["listops", "image"]) == []
    five = published.averages("bigbird", ["listops", "text", "retrieval", "image", "pathfinder"])
    assert [(source, round(value, 2)) for source, value in five] == [("leaderboard", 55.01), ("FLARE++ T6", 55.01)]


def test_tasks_come_in_the_order_of_the_benchmark(tmp_path):
    for task in ("adding", "pathfinder", "image", "text", "listops", "retrieval"):
        add(tmp_path, task=task, metric="within_tolerance" if task == "adding" else "accuracy")
    titles = list(table(tmp_path))
    assert titles[:6] == ["listops", "text", "retrieval", "image", "pathfinder", "adding"]
    assert titles[6:] == ["mean of listops, text, retrieval, image, pathfinder"]


def test_markdown_is_repeatable_and_has_the_notes(tmp_path):
    add(tmp_path, study="mine|b", label="cur_abs", task="retrieval")
    diverged(tmp_path, 7, seed=1, study="mine|b", label="cur_abs", task="retrieval")
    first, second = (markdown(tmp_path, tmp_path / name) for name in ("first", "second"))
    assert first == second
    assert "1 diverged at step 7" in first
    assert "| CURformer T1: 78.58<br>CURformer T4: 78.85 ± 0.64 |" in first
    assert "- CURformer T1: CURformer (Francois et al. 2025, Machine Learning 114:139), Table 1\n" in first
    assert "  - mean and spread over 5 runs; Table 1 prints 78.58 (CURformer select=abs: retrieval)\n" in first


def test_published_values_stand_beside_comparable_runs_alone(tmp_path):
    for budget in ("paper", "quick"):
        add(tmp_path, study=budget, label="cur_abs", task="retrieval", budget=budget)
    studies = summary.collect(tmp_path)[0]
    (paper,), (quick,) = (results.details(name, studies[name]) for name in ("paper", "quick"))
    assert "CURformer T1: 78.58" in texts(paper)["cur_abs"]["published"]
    assert texts(quick)["cur_abs"]["published"] == "" and "Not comparable" in quick.about


def test_a_study_of_one_mechanism_and_the_control_has_a_finding(tmp_path):
    for seed, (own, control) in enumerate([(60.0, 50.0), (62.0, 51.0)]):
        add(tmp_path, study="mine", label="cur_abs", seed=seed, test=own)
        add(tmp_path, study="mine", label="mean", seed=seed, test=control)
    found = lambda: results.finding(summary.collect(tmp_path)[0]["mine"])
    line = "cur_abs scores +10.50 ± 1.12 points over mean, the control without attention (n = 2 and 2)"
    assert found() == line  # sqrt(2 / 2 + 0.5 / 2)
    add(tmp_path, study="mine", label="sdpa")
    assert found() == ""


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
    content = "mechanismtestndevconstantmsparams"
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


@pytest.mark.first
def test_command(tmp_path):
    add(tmp_path)
    damaged = add(tmp_path, seed=1)
    damaged.write_text(json.dumps({"kind": "train"}))
    command = [sys.executable, "-m", "lra.report", f"runs={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"skipped: {damaged} is not a record") and done.stderr.count("\n") == 1
    out = tmp_path / "report"
    assert "39.62 ± 0.62" in done.stdout
    assert done.stdout.endswith(f"written to {out}: index.html, report.md, main.tex, tables, figures\n")
    assert (out / "report.md").read_text() == markdown(tmp_path, tmp_path / "again")
    assert f"<li>{escape(str(damaged))} is not a record" in (out / "index.html").read_text()


def test_a_file_name_has_an_end_and_names_stay_apart():
    names = ["mean of " + ", ".join(f"temporal_order_N{n}" for n in range(k)) for k in (20, 21)]
    stems = [stem(name) for name in names]
    assert len(set(stems)) == 2 and all(len(one) == 120 for one in stems) and stem("a, b") == "a-b"


def test_small_numbers_are_not_rounded_away_in_csv():
    cells = frame(("mechanism", "error"), [["a", Cell(text="3.2e-07", value=3.2e-7, std=6.4e-8, n=2)]])
    made = Table(name="x", title="x", about="x", cells=cells, errors=("error",))
    assert made.csv() == "mechanism,error,error se,error n\na,3.2e-07,6.4e-08,2\n"
