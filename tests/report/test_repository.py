"""Tables of a study, and the generated parts of docs/results.md, docs/board.md and the README."""

import dataclasses
import itertools
import json
import math
import re
from xml.etree import ElementTree

import pytest
from conftest import assert_error
from support.records import PHASE, RECORD, add, add_seeds, cells, diverged, of_study, table, texts

from lra.config import CONF
from lra.report import overview, repository
from lra.results import lr_search, paper_values
from lra.runs import published


def test_mean_needs_every_task(tmp_path):
    for task in ("listops", "text"):
        add_seeds(tmp_path, "cur_abs", (30.0, 31.0, 32.0), task=task)
    add_seeds(tmp_path, "softmax", [40.0] * 3)
    diverged(tmp_path, 5, label="softmax", task="text")
    study_table = overview.score_table(of_study(tmp_path))
    assert study_table.head == ["mechanism", "listops", "text", "mean"]
    cur, softmax = (cells(study_table)[label] for label in ("cur_abs", "softmax"))
    assert cur["mean"].text == "31.00 ± 1.00" and cur["mean"].n == 3
    assert softmax["text"].text == softmax["mean"].text == "" and "1 seed without a result" in softmax["text"].note
    assert softmax["listops"].mark == "best" and cur["listops"].mark == ""


def test_gain_over_control_has_standard_error_and_significance(tmp_path):
    mean, close, distant = (40.0, 41.0, 42.0), (40.0, 41.5, 43.0), (44.0, 45.0, 46.0, 47.0)
    for label, tests in (("mean", mean), ("near", close), ("far", distant)):
        add_seeds(tmp_path, label, tests)
    for label, tests in (("mean", mean), ("near", close)):
        add_seeds(tmp_path, label, tests, task="text")
    add(tmp_path, label="once", test=41.5)
    diverged(tmp_path, 3, label="lost")
    # Image has no run of the control.
    add(tmp_path, label="near", task="image")
    study_table = overview.over_control(of_study(tmp_path))
    lines = cells(study_table)
    assert study_table.head == ["mechanism", "listops", "text"] and lines.keys() == {"near", "far", "once", "lost"}
    # Standard error of a difference of means: sqrt(s1² / n1 + s2² / n2), here with variances 1 and 5/3.
    cell, error = lines["far"]["listops"], math.sqrt(1 / 3 + (5 / 3) / 4)
    assert (cell.value, cell.std) == (pytest.approx(4.5), pytest.approx(error)) and cell.mark == ""
    cell, error = lines["near"]["listops"], math.sqrt(1 / 3 + 2.25 / 3)
    assert cell.text == f"+0.50 ± {error:.2f}" and cell.mark == "tied"
    assert (lines["once"]["listops"].text, lines["once"]["listops"].mark) == ("+0.50", "")
    assert lines["lost"]["listops"].text == lines["far"]["text"].text == ""
    assert study_table.about.endswith("No gain with a standard error is significantly different from zero on text.")
    assert "listops se" in study_table.numbers()
    assert overview.over_control([row for row in of_study(tmp_path) if row.label != "mean"]) is None
    # A single mechanism next to the control is summarised in a sentence; 1.12 = sqrt(2 / 2 + 0.5 / 2).
    add_seeds(tmp_path, "cur_abs", (60.0, 62.0), study="mine")
    add_seeds(tmp_path, "mean", (50.0, 51.0), study="mine")
    sentence = "cur_abs scores +10.50 ± 1.12 points over mean, the control without attention (n = 2 and 2)"
    assert overview.finding(of_study(tmp_path, "mine")) == sentence
    add(tmp_path, study="mine", label="sdpa")
    assert overview.finding(of_study(tmp_path, "mine")) == ""


def test_every_mean_reports_collapsed_seeds(tmp_path):
    for seed, test in enumerate((17.0, 60.0, 17.0, 64.0, 17.0)):
        add(tmp_path, seed=seed, test=test, collapsed=test == 17, budget="quick")
        add(tmp_path, seed=seed, test=20.0 + seed, label="mean", collapsed=False, budget="quick")
        add(tmp_path, seed=seed, test=50.0 + seed, task="image", budget="quick")
        add(tmp_path, seed=seed, test=17.0, label="cur_abs-optim.lr=1e-2", collapsed=True, budget="quick")
    lines = texts(table(tmp_path)["listops"])["cur_abs"]
    assert lines["test"] == "35.00 ± 24.69 (collapsed 3/5)" and lines["n"] == "5"
    assert "collapsed 3/5, others 62.00" in lines["details"].split("; ")
    rows = of_study(tmp_path)
    board = overview.score_table(rows)
    assert texts(board)["cur_abs"]["listops"] == "35.00 ± 24.69 (collapsed 3/5)"
    assert texts(board)["cur_abs"]["mean"].endswith(" (collapsed 3/10)")
    assert "collapsed" not in texts(board)["mean"]["listops"]
    assert board.numbers().set_index("mechanism").loc["cur_abs", "listops collapsed"] == 3
    gain = texts(overview.over_control(rows))["cur_abs"]["listops"]
    assert gain.startswith("+13.00 ± ") and gain.endswith(" (collapsed 3/5)")
    assert "1e-2 38.00 (collapsed 5/5)" in texts(lr_search.lr_table(rows))["cur_abs"]["val at each rate"]
    assert "over the 2 that did not collapse" in cells(board)["cur_abs"]["listops"].note


def test_averages_are_grouped_by_common_tasks(tmp_path):
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
    # A published average needs every task.
    assert paper_values.averages("bigbird", ["listops", "pathfinder_x"]) == []
    assert paper_values.averages("transformer_ls", ["listops", "image"]) == []
    five = paper_values.averages("bigbird", ["listops", "text", "retrieval", "image", "pathfinder"])
    assert [(source, round(value, 2)) for source, value in five] == [("leaderboard", 55.01), ("FLARE++ T6", 55.01)]
    assert paper_values.accuracies("softmax", ["genome", "average"]) == []


def test_caption_of_mixed_budgets_explains_published_means(tmp_path):
    for task in ("listops", "text"):
        add(tmp_path, task=task)
        add(tmp_path, task=task, label="softmax", budget="quick")
        add(tmp_path, task=task, label="softmax", budget="quick", study="short")
    mixed = table(tmp_path)["mean of listops, text"]
    assert texts(mixed)["cur_abs"]["published"] and not texts(mixed)["softmax"]["published"]
    caution = "not comparable with the published values: budget quick."
    assert mixed.about.endswith(f"recomputed over exactly these tasks. Some rows are {caution}")
    assert table(tmp_path, "short")["mean of listops, text"].about == f"Protocol paper; budget quick. N{caution[1:]}"


def test_published_pages_and_figures_are_up_to_date():
    texts, pictures = repository.pages()
    message = "{} differs: python -m lra.report published=true"
    for path, text in texts.items():
        assert path.read_text(encoding="utf-8") == text, message.format(path)
    for path, picture in pictures.items():
        about = ElementTree.parse(path).findtext(".//{http://purl.org/dc/elements/1.1/}description")
        assert about == repository.about_figure(picture.panels), message.format(path)
    assert {path.name for path in pictures} == {path.name for path in (CONF.parent / "docs").glob("results-*.svg")}
    for study in published.studies(published.HOME):
        about = json.loads((study / "about.json").read_text())
        assert about.keys() - {"figure"} == {"form", "command", "hardware", "notes", "readme"}
        assert about["command"].startswith(("lra ", "python -m lra."))


def about(home, study, **changes):
    info = {"command": "python -m lra.train", "hardware": "a CPU", "notes": ["a note"], "readme": ["listops"]} | changes
    (home / "published" / study / "about.json").write_text(json.dumps({"form": 2} | info))


def published_run(study, label, task, **changes):
    result = dataclasses.replace(RECORD, study=study, task=task, label=label, fingerprint=label + task, **changes)
    return published.Published(result, {"attn": label}, [{"step": 5, "train_loss": 2.0, "val": result.val}])


def readme_and_results(home):
    texts, _ = repository.pages(home, home / "published")
    return texts[home / "README.md"], texts[home / "docs" / "results.md"]


@pytest.fixture
def home(tmp_path):
    """A repository with two published studies: one mechanism and the control on two tasks."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(f"# Title\n{repository.BEGIN}\nold\n{repository.END}\nend\n")
    for study in ("one", "two"):
        cases = itertools.product(("listops", "text"), {"mean": 20.0, "cur_abs": 30.0}.items())
        runs = [published_run(study, label, task, val=val) for task, (label, val) in cases]
        published.save(tmp_path / "published" / study, runs)
        about(tmp_path, study)
    return tmp_path


def test_large_board_is_summarised_in_readme_and_pages(home):
    _, before = readme_and_results(home)
    for study, rates in (("board", [""]), ("board-rates", ["-optim.lr=0.01", "-optim.lr=0.1"])):
        cases = itertools.product(range(60), rates, ("chain", "recall", "registers", "listops"))
        runs = [published_run(study, f"m{i}{rate}", task, floor=10.0) for i, rate, task in cases]
        published.save(home / "published" / study, [run._replace(evaluations=[]) for run in runs])
    about(home, "board", readme=["chain"])
    (home / "docs" / "board.md").write_text(f"# The board\n{repository.BEGIN}\n{repository.END}\n")
    readme, unchanged = readme_and_results(home)
    pages = repository.pages(home, home / "published")[0]
    page, results = pages[home / "docs" / "board.md"], pages[home / "docs" / "board_results.md"]
    assert unchanged == before
    assert "](results-board-scores.svg)" in page and len(re.findall(r"\| `m\d", page)) == 1
    assert len(re.findall(r"\| `m\d", readme)) == 1 and "](docs/results-board-scores.svg)" in readme
    assert 60 < len(results.splitlines()) < 130 and results.count("| `m7` |") == 1
    assert re.findall(r"]\(results-board-(\w+).svg\)", results) == ["scores", "seeds", "rates"]
    assert "of CUR" not in readme


def test_saved_figures_have_the_description_that_is_compared(home, monkeypatch):
    texts, pictures = repository.pages(home, home / "published")
    monkeypatch.setattr(repository, "pages", lambda: (texts, pictures))
    assert all(path.exists() for path in repository.save()) and "dc:description" in min(pictures).read_text()


def test_study_of_one_mechanism_has_no_figure(home):
    published.save(home / "published" / "one", [published_run("one", "mean", "listops")])
    assert [path.name for path in repository.pages(home, home / "published")[1]] == ["results-two.svg"]


def test_about_file_lists_mechanisms_of_figure(home):
    def shown_labels():
        panels = repository.pages(home, home / "published")[1][home / "docs" / "results-one.svg"].panels
        return {task: [item.label for item in result] for task, result in panels.items()}

    assert shown_labels() == {"listops": ["cur_abs", "mean"], "text": ["cur_abs", "mean"]}
    about(home, "one", figure=["mean", "not run yet"])
    assert shown_labels() == {"listops": ["mean"], "text": ["mean"]}
    _, page = readme_and_results(home)
    assert "one over steps, of some mechanisms" in page and "two over steps, mean" in page and "`cur_abs`" in page


def test_single_task_study_has_one_table_for_gains_or_pretraining(home):
    runs = [published_run("one", label, "listops", test=test) for label, test in (("mean", 20.0), ("cur_abs", 30.0))]
    published.save(home / "published" / "one", runs)
    section = readme_and_results(home)[1].partition("\n## Study one")[2].partition("\n## Study two")[0]
    assert "| `cur_abs` | 30.00 | +10.00 | 1 |" in section and section.count("| mechanism |") == 1
    pretrained = published_run("one", "cur_abs+masked", "listops", test=36.0, pretrain=PHASE)
    published.save(home / "published" / "one", [*runs, pretrained])
    section = readme_and_results(home)[1].partition("\n## Study one")[2].partition("\n## Study two")[0]
    assert "| `cur_abs+masked` | listops | 30.00 | 36.00 | +6.00 |" in section and section.count("| mechanism |") == 1


def test_readme_without_markers_raises(home):
    (home / "README.md").write_text("# A project\n")
    assert_error(r"README.md must have the lines <!-- results", readme_and_results, home)
