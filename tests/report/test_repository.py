"""docs/results.md and the README's table are what the published tables say."""

import dataclasses
import json
import re
from xml.etree import ElementTree

import pytest
from support.records import RECORD

from lra.config import CONF
from lra.report import repository
from lra.runs import tables


def test_the_pages_are_those_of_the_tables():
    for path, text in repository.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path} differs: python -m lra.report published=true"


def test_the_figures_are_drawn_from_the_tables():
    drawn = repository.drawings()
    for path, picture in drawn.items():
        about = ElementTree.parse(path).find(".//{http://purl.org/dc/elements/1.1/}description")
        told = f"{path} differs: python -m lra.report published=true"
        assert about is not None and about.text == repository.about_figure(picture.panels), told
    assert {path.name for path in drawn} == {path.name for path in (CONF.parent / "docs").glob("results-*.svg")}


def test_every_study_says_its_command_and_hardware():
    for study in tables.studies(tables.HOME):
        about = json.loads((study / "about.json").read_text())
        assert about.keys() - {"figure"} == {"form", "command", "hardware", "notes", "readme"}
        assert about["command"].startswith("python -m lra.")


@pytest.fixture
def home(tmp_path):
    """A repository with one mechanism and the control on two tasks of two studies."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(f"# Title\n{repository.BEGIN}\nold\n{repository.END}\nend\n")
    for study in ("one", "two"):
        runs = []
        for task in ("listops", "text"):
            for label, val in (("mean", 20.0), ("cur_abs", 30.0)):
                made = dataclasses.replace(
                    RECORD, study=study, task=task, label=label, val=val, fingerprint=label + task
                )
                runs.append(tables.Published(made, {"attn": label}, [{"step": 5, "train_loss": 2.0, "val": val}]))
        tables.save(tmp_path / "published" / study, runs)
        about(tmp_path, study)
    return tmp_path


def test_a_board_of_many_mechanisms_is_two_tables_and_its_pictures(home):
    before = pages(home)[home / "docs" / "results.md"]
    for study, rates in (("board", [""]), ("board-rates", ["-optim.lr=0.01", "-optim.lr=0.1"])):
        labels = [f"m{i}{rate}" for i in range(60) for rate in rates]
        made = [dataclasses.replace(RECORD, study=study, task=task, label=label, fingerprint=label + task, floor=10.0)
                for task in ("chain", "recall", "registers", "listops") for label in labels]  # fmt: skip
        tables.save(home / "published" / study, [tables.Published(run, {}, []) for run in made])
    about(home, "board", readme=["chain"])
    readme, after = (pages(home)[home / name] for name in ("README.md", "docs/results.md"))
    assert len(re.findall(r"\| `m\d", readme)) == 1 and "](docs/results-board-scores.svg)" in readme
    assert 60 < len(after.splitlines()) - len(before.splitlines()) < 110 and after.count("| `m7` |") == 1
    assert re.findall(r"]\(results-board-(\w+).svg\)", after) == ["scores", "seeds", "rates"]


def about(home, study, **changes):
    says = {"command": "python -m lra.train", "hardware": "a CPU", "notes": ["a note"], "readme": ["listops"]} | changes
    (home / "published" / study / "about.json").write_text(json.dumps({"form": 2} | says))


def pages(home):
    return repository.pages(home, home / "published")


def figures(home):
    drawn = repository.drawings(home, home / "published")
    return {path.name: {task: [item.label for item in made] for task, made in p.panels.items()}
            for path, p in drawn.items()}  # fmt: skip


def change(home, study, alter):
    path = home / "published" / study
    tables.save(path, [alter(run) for run in tables.read(path).values()])


def test_another_record_changes_the_pages(home):
    before = pages(home)
    assert before[home / "README.md"].startswith(f"# Title\n{repository.BEGIN}\nTest scores")
    change(home, "one", lambda run: run._replace(record=dataclasses.replace(run.record, test=50.0)))
    after = pages(home)
    assert all(after[page] != text and "50.00" in after[page] for page, text in before.items()) and len(before) == 2


def test_another_evaluation_changes_the_figure_of_its_study(home):
    before = repository.drawings(home, home / "published")
    change(home, "one", lambda run: run._replace(evaluations=[*run.evaluations, {"step": 9, "val": 1.0}]))
    after = repository.drawings(home, home / "published")
    assert [path.name for path in before if before[path] != after[path]] == ["results-one.svg"]


def test_a_figure_shows_the_mechanisms_that_its_study_names_and_has(home):
    assert figures(home)["results-one.svg"] == {key: ["cur_abs", "mean"] for key in ("listops", "text")}
    about(home, "one", figure=["mean", "not run yet"])
    assert figures(home)["results-one.svg"] == {key: ["mean"] for key in ("listops", "text")}
    page = pages(home)[home / "docs" / "results.md"]
    assert "one over steps, of some mechanisms" in page and "two over steps, mean" in page and "`cur_abs`" in page


def test_the_readme_shows_the_tasks_that_a_study_names(home):
    about(home, "one", readme=["listops", "text"])
    about(home, "two", readme=[])
    (readme, result) = (pages(home)[home / name] for name in ("README.md", "docs/results.md"))
    assert "| mechanism | listops | text | mean |" in readme and readme.count("| mechanism |") == 1
    about(home, "one", readme=[])
    assert (
        "| mechanism |" not in pages(home)[home / "README.md"] and pages(home)[home / "docs" / "results.md"] == result
    )


def test_damaged_tables_and_a_readme_without_marks_are_refused(home):
    (home / "README.md").write_text("# A project\n")
    with pytest.raises(ValueError, match=r"README.md must have the lines <!-- results"):
        pages(home)
    (home / "published" / "one" / tables.CURVES).write_text("")
    with pytest.raises(ValueError, match="one does not hold tables of published runs"):
        pages(home)
