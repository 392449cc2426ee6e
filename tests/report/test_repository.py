"""docs/results.md and the README's table are what the published records say."""

import json
import shutil
from xml.etree import ElementTree

import pytest
from conftest import MECHANISMS

from lra.config import CONF
from lra.report import repository, summary
from lra.runs import record


def test_the_pages_are_those_of_the_records():
    for path, text in repository.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path} differs: python -m lra.report published=true"


def test_the_figures_are_drawn_from_the_records():
    drawn = repository.curves()
    for path, panels in drawn.items():
        about = ElementTree.parse(path).find(".//{http://purl.org/dc/elements/1.1/}description")
        told = f"{path} differs: python -m lra.report published=true"
        assert about is not None and about.text == repository.about_figure(panels), told
    assert {path.name for path in drawn} == {path.name for path in (CONF.parent / "docs").glob("results-*.svg")}


def test_every_study_says_its_command_and_hardware():
    for study, rows in summary.collect(repository.HOME)[0].items():
        about = json.loads((repository.HOME / study / repository.ABOUT).read_text())
        assert about.keys() - {"figure"} == {"command", "hardware", "notes", "readme"}
        assert about["command"].startswith("python -m lra.")
        assert {row.label for row in rows} >= set(about.get("figure", []))
        assert {row.task for row in rows} >= set(about["readme"])


def test_the_synthetic_board_is_whole():
    """Two seeds of every mechanism that runs on a CPU, five of the papers' own and of the controls; sdpa is softmax."""
    rows = {(row.task, row.label): row.n for row in summary.collect(repository.HOME, "quick")[0]["quick"]}
    five = {"mean", "none", "conv", "sdpa", "nystrom", "soft", "softpp", "psf", "mega_cur_step"}
    five |= {name for name in MECHANISMS if name.startswith("cur_") and name != "cur_plus"}
    for task in ("adding_N128", "recall_N64_K4", "temporal_order_N128"):
        for name in MECHANISMS:
            if not name.startswith("flashcur_") and name != "softmax":
                assert rows.get((task, name), 0) >= (5 if name in five else 2), (task, name)


@pytest.fixture
def copy(tmp_path):
    (tmp_path / "docs").mkdir()
    shutil.copy(CONF.parent / "README.md", tmp_path)
    shutil.copytree(repository.HOME, tmp_path / "published")
    return tmp_path


def test_another_record_changes_the_pages(copy):
    before = repository.pages(copy, copy / "published")
    path = next((copy / "published").rglob("cur_abs/seed-0/" + record.NAME))
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"test": values["test"] + 10}))
    (path.parent / "SHA256SUMS").unlink()
    after = repository.pages(copy, copy / "published")
    assert all(after[page] != text for page, text in before.items()) and len(before) == 2


def test_another_evaluation_changes_the_figure(copy):
    before = repository.curves(copy, copy / "published")
    path = next((copy / "published").rglob("listops/mean/seed-0/metrics.csv"))
    head, first, *rest = path.read_text().splitlines()
    row = dict(zip(head.split(","), first.split(","), strict=True)) | {"val": "99.0"}
    path.write_text("\n".join([head, ",".join(row.values()), *rest]) + "\n")
    (path.parent / "SHA256SUMS").unlink()
    after = repository.curves(copy, copy / "published")
    changed = [
        path.name for path in before if repository.about_figure(before[path]) != repository.about_figure(after[path])
    ]
    assert len(changed) == 1


def test_a_figure_shows_the_mechanisms_that_its_study_names(copy):
    path = copy / "published" / "quick" / repository.ABOUT
    path.write_text(json.dumps(json.loads(path.read_text()) | {"figure": ["sdpa", "mean"]}))
    figure = repository.curves(copy, copy / "published")[copy / "docs" / "results-quick.svg"]
    assert {curve.label for lines in figure.values() for curve in lines} == {"sdpa", "mean"}
    page = repository.pages(copy, copy / "published")[copy / "docs" / "results.md"]
    assert "quick over steps, of some mechanisms" in page and "paper over steps, mean" in page and "`cur_step`" in page


def test_the_readme_shows_the_tasks_that_a_study_names(copy):
    path = copy / "published" / "quick" / repository.ABOUT
    path.write_text(json.dumps(json.loads(path.read_text()) | {"readme": ["recall_N64_K4", "temporal_order_N128"]}))
    pages = repository.pages(copy, copy / "published")
    assert "| mechanism | recall_N64_K4 | temporal_order_N128 | mean |" in pages[copy / "README.md"]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"readme": []}))
    without = repository.pages(copy, copy / "published")
    assert "temporal_order_N128" not in without[copy / "README.md"]
    assert without[copy / "docs" / "results.md"] == pages[copy / "docs" / "results.md"]


def test_a_damaged_record_and_a_readme_without_marks_are_refused(copy):
    (copy / "README.md").write_text("# A project\n")
    with pytest.raises(ValueError, match=r"README.md must have the lines <!-- results"):
        repository.pages(copy, copy / "published")
    next((copy / "published").rglob(record.NAME)).write_text("{}")
    with pytest.raises(ValueError, match="SHA256SUMS"):
        repository.pages(copy, copy / "published")
