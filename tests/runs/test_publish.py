"""lra.runs.publish: every run once in the tables of its study, and what is refused before anything is written."""

import dataclasses
import shutil
import sys

import pytest
import yaml

from lra.runs import checkpoint, config_file, metrics_file, published, record
from lra.runs.publish import publish
from lra.runs.run_dir import RunDir

WEIGHTS = min(published.HOME.rglob(checkpoint.BEST))
LABEL = WEIGHTS.parents[1]
SOURCES = dict(list(published.below(LABEL).items())[:2])  # seeds 0 and 1


def as_folder(run, folder, weights=None):
    """Write the files of a finished run as training does."""
    folder.mkdir(parents=True)
    (folder / config_file.NAME).write_text(yaml.dump(run.choices))
    if run.evaluations:
        (folder / metrics_file.NAME).write_text(metrics_file.format_csv(run.evaluations))
    if weights:
        shutil.copy(weights, folder / checkpoint.BEST)
    record.save(run.record, folder)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A working directory with two finished runs in runs/mine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["publish", "runs=runs/mine", "out=out"])
    for number, run in enumerate(SOURCES.values()):
        as_folder(run, tmp_path / "runs" / "mine" / f"seed-{number}", None if number else WEIGHTS)
    return tmp_path


def published_runs(home):
    return {path: run for study in published.studies(home / "out") for path, run in published.read(study).items()}


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*")}


def change(folder, **fields):
    record.save(dataclasses.replace(record.load(folder / record.NAME), **fields), folder)


def refusal() -> str:
    with pytest.raises(SystemExit) as stop:
        publish()
    return str(stop.value)


def test_runs_are_whole_and_are_added_once(home, monkeypatch, capsys):
    publish()
    assert list(published_runs(home).values()) == list(SOURCES.values())
    files = {published.RUNS, published.CURVES, published.CONFIGS, published.ABOUT}
    assert {path.name for path in (home / "out").rglob("*.*")} == files
    assert "2 added, 0 there already" in (told := capsys.readouterr().out) and "about.json" in told
    before = contents(home / "out")
    publish()
    assert "0 added, 2 there already" in capsys.readouterr().out and contents(home / "out") == before
    monkeypatch.setattr(sys, "argv", ["publish", "runs=out", "out=again"])  # tables can be published too
    publish()
    assert contents(home / "again") == before


def test_runs_are_added_to_those_that_are_there(home, capsys):
    shutil.move(home / "runs" / "mine" / "seed-1", home / "later")
    publish()
    shutil.move(home / "later", home / "runs" / "mine" / "seed-1")
    publish()
    assert "1 added, 1 there already" in capsys.readouterr().out
    one_after_the_other = contents(home / "out")
    shutil.rmtree(home / "out")
    publish()
    assert one_after_the_other == contents(home / "out")


def test_weights_of_named_seeds_are_copied_bit_for_bit_and_follow_later(home, monkeypatch):
    (home / "out").mkdir()
    (home / "out" / published.RUNS).touch()  # beside the studies, of somebody else
    publish()
    before = contents(home / "out")
    monkeypatch.setattr(sys, "argv", [*sys.argv, "weights=[0]"])
    publish()
    (copy,) = (home / "out").rglob(checkpoint.BEST)
    assert copy.parent.name == "seed-0" and copy.read_bytes() == WEIGHTS.read_bytes()
    assert RunDir.read(copy.parent).weights == copy
    assert before.items() <= contents(home / "out").items()


def test_a_run_that_diverged_before_its_first_evaluation_is_added(home):
    run = home / "runs" / "mine" / "seed-1"
    (run / metrics_file.NAME).unlink()
    change(run, status="diverged", val=None, test=None, best_step=None, steps=7)
    publish()
    (copy,) = (run for run in published_runs(home).values() if run.record.status == "diverged")
    assert copy.evaluations == [] and copy.record.steps == 7


REFUSED = {
    "seed-1 was made by code that is not committed, 123-dirty": lambda mine: change(mine / "seed-1", git="123-dirty"),
    "seed-1 was made by code that is not committed, None": lambda mine: change(mine / "seed-1", git=None),
    "the same study, task, label and seed": lambda mine: shutil.copytree(mine / "seed-0", mine / "again"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_refused_leaves_nothing(home, reason):
    REFUSED[reason](home / "runs" / "mine")
    assert reason in refusal() and not (home / "out").exists()


def test_another_run_in_its_place_is_kept(home):
    publish()
    change(home / "runs" / "mine" / "seed-0", test=1.0)
    before = contents(home / "out")
    assert "is another run than runs/mine/seed-0" in refusal()
    assert contents(home / "out") == before


def test_no_run_and_no_folder(home, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["publish", "runs=nowhere"])
    assert refusal() == "lra: there is no finished run below nowhere"
    monkeypatch.setattr(sys, "argv", ["publish"])
    assert "a folder of finished runs: runs=runs/<study>" in refusal()
