"""lra.runs.publish: whole copies without checkpoints, and what it refuses before it copies anything."""

import dataclasses
import shutil
import sys

import pytest
from test_published import RUNS, WEIGHTS

from lra.disk import checksums
from lra.runs import checkpoint, evaluations, record
from lra.runs.open import open_run
from lra.runs.publish import publish

FILES = {"config.yaml", "metrics.csv", "record.json"}
SOURCES = (WEIGHTS[0], next(run for run in RUNS if run not in WEIGHTS))  # of seeds 0 and 1


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A working directory with two finished runs in runs/mine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["publish", "runs=runs/mine", "out=out"])
    for number, run in enumerate(SOURCES):
        shutil.copytree(run, tmp_path / "runs" / "mine" / f"seed-{number}")
    return tmp_path


def files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def change(folder, **fields):
    record.save(dataclasses.replace(record.load(folder / record.NAME), **fields), folder)


def refusal() -> str:
    with pytest.raises(SystemExit) as stop:
        publish()
    return str(stop.value)


def test_copies_are_whole_and_are_made_once(home, capsys):
    publish()
    for source in SOURCES:
        expected = open_run(source)
        r = expected.record
        folder = home / "out" / r.study / r.task / r.label / f"seed-{r.seed}"
        copy = open_run(folder)
        assert (copy.record, copy.choices, copy.evaluations()) == (r, expected.choices, expected.evaluations())
        assert {path.name for path in folder.iterdir()} == {checksums.NAME, *FILES}
        assert set(checksums.entries(folder)) == FILES
    assert "2 copied, 0 there already" in (told := capsys.readouterr().out) and "about.json" in told
    before = files(home / "out")
    publish()
    assert "0 copied, 2 there already" in capsys.readouterr().out and files(home / "out") == before


def test_weights_of_named_seeds_are_copied_bit_for_bit(home, monkeypatch):
    monkeypatch.setattr(sys, "argv", [*sys.argv, "weights=[0]"])
    publish()
    (copy,) = (home / "out").rglob(checkpoint.SAFE)
    weights, expected = checkpoint.read(copy), checkpoint.read(WEIGHTS[0] / checkpoint.SAFE)
    assert copy.parent.name == "seed-0" and weights.keys() == expected.keys()
    assert all(weights[name].equal(value) for name, value in expected.items())


def test_weights_follow_a_run_that_is_published_without(home, monkeypatch, capsys):
    publish()
    before = files(home / "out")
    monkeypatch.setattr(sys, "argv", [*sys.argv, "weights=[0]"])
    publish()
    (copy,) = (home / "out").rglob(checkpoint.SAFE)
    assert checkpoint.SAFE in checksums.entries(copy.parent) and checkpoint.read(copy)
    after = files(home / "out")
    changed = {path.name for path in after if before.get(path) != after[path]}
    assert changed == {copy.parent.name, checksums.NAME, checkpoint.SAFE}


def test_a_run_that_diverged_before_its_first_evaluation_is_copied(home):
    run = home / "runs" / "mine" / "seed-1"
    sums = checksums.entries(run)
    del sums[evaluations.NAME]
    (run / checksums.NAME).write_text(checksums.listing(sums))
    (run / evaluations.NAME).unlink()
    change(run, status="diverged", val=None, test=None, best_step=None, steps=7)
    publish()
    (copy,) = (path.parent for path in (home / "out").rglob(record.NAME) if record.load(path).status == "diverged")
    assert set(checksums.entries(copy)) == FILES - {evaluations.NAME} and open_run(copy).record.steps == 7


@pytest.mark.parametrize(
    ("fields", "reason"), [({"git": "123-dirty"}, "not committed, 123-dirty"), ({"git": None}, "not committed")]
)
def test_a_run_of_unknown_code_is_refused_and_nothing_is_copied(home, fields, reason):
    change(home / "runs" / "mine" / "seed-1", **fields)
    assert reason in (told := refusal()) and "seed-1" in told
    assert not (home / "out").exists()


def test_another_run_in_its_place_is_kept(home):
    publish()
    change(home / "runs" / "mine" / "seed-0", test=1.0)
    before = files(home / "out")
    assert "holds another run than runs/mine/seed-0" in refusal()
    assert files(home / "out") == before


def test_two_runs_for_one_place_are_refused(home):
    shutil.copytree(home / "runs" / "mine" / "seed-0", home / "runs" / "mine" / "again")
    assert "the same study, task, label and seed" in refusal()


def test_no_run_and_no_folder(home, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["publish", "runs=nowhere"])
    assert refusal() == "lra: there is no finished run below nowhere"
    monkeypatch.setattr(sys, "argv", ["publish"])
    assert "a folder of finished runs: runs=runs/<study>" in refusal()
