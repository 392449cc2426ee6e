"""docs/results.md and the README's table are what the published tables say."""

import dataclasses
import itertools
import json
import re
from xml.etree import ElementTree

import pytest
from support.records import PHASE, RECORD

from lra.config import CONF
from lra.report import repository
from lra.runs import published


def test_the_pages_are_those_of_the_tables():
    for path, text in repository.pages()[0].items():
        assert path.read_text(encoding="utf-8") == text, f"{path} differs: python -m lra.report published=true"


def test_the_figures_are_drawn_from_the_tables():
    _, drawn = repository.pages()
    for path, picture in drawn.items():
        about = ElementTree.parse(path).find(".//{http://purl.org/dc/elements/1.1/}description")
        told = f"{path} differs: python -m lra.report published=true"
        assert about is not None and about.text == repository.about_figure(picture.panels), told
    assert {path.name for path in drawn} == {path.name for path in (CONF.parent / "docs").glob("results-*.svg")}


def test_every_study_says_its_command_and_hardware():
    for study in published.studies(published.HOME):
        about = json.loads((study / "about.json").read_text())
        assert about.keys() - {"figure"} == {"form", "command", "hardware", "notes", "readme"}
        assert about["command"].startswith("python -m lra.")


def about(home, study, **changes):
    says = {"command": "python -m lra.train", "hardware": "a CPU", "notes": ["a note"], "readme": ["listops"]} | changes
    (home / "published" / study / "about.json").write_text(json.dumps({"form": 2} | says))


def published_run(study, label, task, **changes):
    made = dataclasses.replace(RECORD, study=study, task=task, label=label, fingerprint=label + task, **changes)
    return published.Published(made, {"attn": label}, [{"step": 5, "train_loss": 2.0, "val": made.val}])


def pages(home):
    """The README and docs/results.md."""
    made, _ = repository.pages(home, home / "published")
    return made[home / "README.md"], made[home / "docs" / "results.md"]


@pytest.fixture
def home(tmp_path):
    """A repository with one mechanism and the control on two tasks of two studies."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(f"# Title\n{repository.BEGIN}\nold\n{repository.END}\nend\n")
    for study in ("one", "two"):
        cases = itertools.product(("listops", "text"), {"mean": 20.0, "cur_abs": 30.0}.items())
        runs = [published_run(study, label, task, val=val) for task, (label, val) in cases]
        published.save(tmp_path / "published" / study, runs)
        about(tmp_path, study)
    return tmp_path


def test_a_board_of_many_mechanisms_is_two_tables_and_its_pictures(home):
    _, before = pages(home)
    for study, rates in (("board", [""]), ("board-rates", ["-optim.lr=0.01", "-optim.lr=0.1"])):
        cases = itertools.product(range(60), rates, ("chain", "recall", "registers", "listops"))
        runs = [published_run(study, f"m{i}{rate}", task, floor=10.0) for i, rate, task in cases]
        published.save(home / "published" / study, [run._replace(evaluations=[]) for run in runs])
    about(home, "board", readme=["chain"])
    (home / "docs" / "board.md").write_text(f"# The board\n{repository.BEGIN}\n{repository.END}\n")
    readme, after = pages(home)
    page = repository.pages(home, home / "published")[0][home / "docs" / "board.md"]
    assert "](results-board-scores.svg)" in page and len(re.findall(r"\| `m\d", page)) == 1
    assert len(re.findall(r"\| `m\d", readme)) == 1 and "](docs/results-board-scores.svg)" in readme
    assert 60 < len(after.splitlines()) - len(before.splitlines()) < 110 and after.count("| `m7` |") == 1
    assert re.findall(r"]\(results-board-(\w+).svg\)", after) == ["scores", "seeds", "rates"] and "of CUR" not in readme


def change(home, alter):
    path = home / "published" / "one"
    published.save(path, [alter(run) for run in published.read(path).values()])


def test_another_record_changes_the_pages(home):
    before = pages(home)
    assert before[0].startswith(f"# Title\n{repository.BEGIN}\n**ListOps**") and "\nTest scores" in before[0]
    change(home, lambda run: run._replace(record=dataclasses.replace(run.record, test=50.0)))
    assert all(new != old and "50.00" in new for new, old in zip(pages(home), before, strict=True))


def test_another_evaluation_changes_the_figure_of_its_study(home):
    before = repository.pages(home, home / "published")[1]
    change(home, lambda run: run._replace(evaluations=[*run.evaluations, {"step": 9, "val": 1.0}]))
    after = repository.pages(home, home / "published")[1]
    assert [path.name for path in before if before[path] != after[path]] == ["results-one.svg"]


def test_a_figure_shows_the_mechanisms_that_its_study_names_and_has(home):
    def shown():
        panels = repository.pages(home, home / "published")[1][home / "docs" / "results-one.svg"].panels
        return {task: [item.label for item in made] for task, made in panels.items()}

    assert shown() == {"listops": ["cur_abs", "mean"], "text": ["cur_abs", "mean"]}
    about(home, "one", figure=["mean", "not run yet"])
    assert shown() == {"listops": ["mean"], "text": ["mean"]}
    _, page = pages(home)
    assert "one over steps, of some mechanisms" in page and "two over steps, mean" in page and "`cur_abs`" in page


def test_the_readme_shows_the_tasks_that_a_study_names(home):
    about(home, "one", readme=["listops", "text"])
    about(home, "two", readme=[])
    readme, page = pages(home)
    assert "| mechanism | listops | text | mean |" in readme and readme.count("| mechanism | listops |") == 1
    about(home, "one", readme=[])
    readme, same = pages(home)
    assert "| mechanism | listops |" not in readme and same == page


def test_one_task_is_one_table_with_gains_and_pretraining_a_table_of_its_own(home):
    runs = [published_run("one", label, "listops", test=test) for label, test in (("mean", 20.0), ("cur_abs", 30.0))]
    published.save(home / "published" / "one", runs)
    section = pages(home)[1].partition("\n## one")[2].partition("\n## two")[0]
    assert "| `cur_abs` | 30.00 | +10.00 | 1 |" in section and section.count("| mechanism |") == 1
    pretrained = published_run("one", "cur_abs+masked", "listops", test=36.0, pretrain=PHASE)
    published.save(home / "published" / "one", [*runs, pretrained])
    section = pages(home)[1].partition("\n## one")[2].partition("\n## two")[0]
    assert "| `cur_abs+masked` | listops | 30.00 | 36.00 | +6.00 |" in section and section.count("| mechanism |") == 1


def test_damaged_tables_and_a_readme_without_marks_are_refused(home):
    (home / "README.md").write_text("# A project\n")
    with pytest.raises(ValueError, match=r"README.md must have the lines <!-- results"):
        pages(home)
    (home / "published" / "one" / published.CURVES).write_text("")
    with pytest.raises(ValueError, match="one does not hold tables of published runs"):
        pages(home)
