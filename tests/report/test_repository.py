"""docs/results.md and the README's table are what the published records say."""

import json
import shutil
from xml.etree import ElementTree

import pytest

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
    for study in summary.collect(repository.HOME)[0]:
        about = json.loads((repository.HOME / study / repository.ABOUT).read_text())
        assert about.keys() - {"figure"} == {"command", "hardware", "notes", "readme"}
        assert about["command"].startswith("python -m lra.")


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
    assert "quick over steps, of some mechanisms" in page and "paper over steps, mean" in page and "`cur_abs`" in page


def test_the_readme_shows_the_tasks_that_a_study_names(copy):
    path = copy / "published" / "quick" / repository.ABOUT
    path.write_text(json.dumps(json.loads(path.read_text()) | {"readme": ["listops"]}))
    pages = repository.pages(copy, copy / "published")
    assert pages[copy / "README.md"].count("| mechanism | listops |") == 2
    path.write_text(json.dumps(json.loads(path.read_text()) | {"readme": []}))
    without = repository.pages(copy, copy / "published")
    assert without[copy / "README.md"].count("| mechanism | listops |") == 1
    assert without[copy / "docs" / "results.md"] == pages[copy / "docs" / "results.md"]


def test_a_damaged_record_and_a_readme_without_marks_are_refused(copy):
    (copy / "README.md").write_text("# A project\n")
    with pytest.raises(ValueError, match=r"README.md must have the lines <!-- results"):
        repository.pages(copy, copy / "published")
    next((copy / "published").rglob(record.NAME)).write_text("{}")
    with pytest.raises(ValueError, match="SHA256SUMS"):
        repository.pages(copy, copy / "published")
