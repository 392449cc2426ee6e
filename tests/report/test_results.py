"""The tables of a study: scores by task and their means, gains over the control, what a study found."""

import math

import pytest
from support.records import add, add_seeds, cells, diverged, of_study, table, texts

from lra.report import lr_search, published, results


def test_a_mean_is_only_over_all_tasks(tmp_path):
    for task in ("listops", "text"):
        add_seeds(tmp_path, "cur_abs", (30.0, 31.0, 32.0), task=task)
    add_seeds(tmp_path, "softmax", [40.0] * 3)
    diverged(tmp_path, 5, label="softmax", task="text")
    found = results.results(of_study(tmp_path))
    assert found.head == ["mechanism", "listops", "text", "mean"]
    cur, softmax = (cells(found)[label] for label in ("cur_abs", "softmax"))
    assert cur["mean"].text == "31.00 ± 1.00" and cur["mean"].n == 3
    assert softmax["text"].text == softmax["mean"].text == "" and "1 seed without a result" in softmax["text"].note
    assert softmax["listops"].mark == "best" and cur["listops"].mark == ""


def test_gains_over_the_control_and_a_task_that_tells_nothing_apart(tmp_path):
    mean, near, far = (40.0, 41.0, 42.0), (40.0, 41.5, 43.0), (44.0, 45.0, 46.0, 47.0)
    for label, tests in (("mean", mean), ("near", near), ("far", far)):
        add_seeds(tmp_path, label, tests)
    for label, tests in (("mean", mean), ("near", near)):
        add_seeds(tmp_path, label, tests, task="text")
    add(tmp_path, label="once", test=41.5)
    diverged(tmp_path, 3, label="lost")
    add(tmp_path, label="near", task="image")  # no control
    found = results.over_control(of_study(tmp_path))
    lines = cells(found)
    assert found.head == ["mechanism", "listops", "text"] and lines.keys() == {"near", "far", "once", "lost"}
    cell, error = lines["far"]["listops"], math.sqrt(1 / 3 + (5 / 3) / 4)  # variances 1 and 5/3
    assert (cell.value, cell.std) == (pytest.approx(4.5), pytest.approx(error)) and cell.mark == ""
    cell, error = lines["near"]["listops"], math.sqrt(1 / 3 + 2.25 / 3)
    assert cell.text == f"+0.50 ± {error:.2f}" and cell.mark == "tied"
    assert (lines["once"]["listops"].text, lines["once"]["listops"].mark) == ("+0.50", "")
    assert lines["lost"]["listops"].text == lines["far"]["text"].text == ""
    assert found.about.endswith("No gain is significantly different from zero on text.")
    assert "listops se" in found.numbers()
    assert results.over_control([row for row in of_study(tmp_path) if row.label != "mean"]) is None


def test_collapsed_seeds_are_told_beside_every_mean(tmp_path):
    for seed, test in enumerate((17.0, 60.0, 17.0, 64.0, 17.0)):
        add(tmp_path, seed=seed, test=test, collapsed=test == 17, budget="quick")
        add(tmp_path, seed=seed, test=20.0 + seed, label="mean", collapsed=False, budget="quick")
        add(tmp_path, seed=seed, test=50.0 + seed, task="image", budget="quick")
        add(tmp_path, seed=seed, test=17.0, label="cur_abs-optim.lr=1e-2", collapsed=True, budget="quick")
    lines = texts(table(tmp_path)["listops"])["cur_abs"]
    assert lines["test"] == "35.00 ± 24.69 (collapsed 3/5)" and lines["n"] == "5"
    assert "collapsed 3/5, others 62.00" in lines["details"].split("; ")
    rows = of_study(tmp_path)
    board = results.results(rows)
    assert texts(board)["cur_abs"]["listops"] == "35.00 ± 24.69 (collapsed 3/5)"
    assert texts(board)["cur_abs"]["mean"].endswith(" (collapsed 3/10)")
    assert "collapsed" not in texts(board)["mean"]["listops"]
    assert board.numbers().set_index("mechanism").loc["cur_abs", "listops collapsed"] == 3
    over = texts(results.over_control(rows))["cur_abs"]["listops"]
    assert over.startswith("+13.00 ± ") and over.endswith(" (collapsed 3/5)")
    tried = lr_search.lr_table(rows)
    assert "1e-2 38.00 (collapsed 5/5)" in texts(tried)["cur_abs"]["val at each rate"]
    assert "over the 2 that did not collapse" in cells(board)["cur_abs"]["listops"].note


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
    assert published.accuracies("softmax", ["genome", "average"]) == []


def test_a_study_of_one_mechanism_and_the_control_has_a_finding(tmp_path):
    add_seeds(tmp_path, "cur_abs", (60.0, 62.0), study="mine")
    add_seeds(tmp_path, "mean", (50.0, 51.0), study="mine")
    line = "cur_abs scores +10.50 ± 1.12 points over mean, the control without attention (n = 2 and 2)"
    assert results.finding(of_study(tmp_path, "mine")) == line  # sqrt(2 / 2 + 0.5 / 2)
    add(tmp_path, study="mine", label="sdpa")
    assert results.finding(of_study(tmp_path, "mine")) == ""
