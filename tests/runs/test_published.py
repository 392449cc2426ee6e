"""Tests of the tables of published runs: round trip, contents, additions by lra.runs.publish, and rejected runs."""

import dataclasses
import functools
import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from conftest import error_message
from server import write_folder
from support.records import PHASE, RECORD, flip, replace_text

from lra.evaluate.restore import load_best_model, restore_experiment
from lra.io import lock
from lra.runs import checkpoint, config_file, published, reader, record
from lra.runs.publish import check_and_convert, publish
from lra.runs.run_dir import RunDir

FILLED = {"tokens": 10**12, "pretrain": PHASE, "data": "00", "collapsed": True, "live_units": 1 / 3, "command": "'b,c'"}
CHOICES = {"attn.count": 8, "optim.lr": 1e-3, "model.head": None, "optim.betas": [0.9, 0.999], "trainer.precision": "1"}
# Run directories with published weights, and two runs of the first one's label.
WEIGHTS = sorted(path.parent for path in published.HOME.rglob(checkpoint.BEST))
SOURCES = list(published.below(WEIGHTS[0].parent).values())[:2]


def run(seed, curve=((5, 1 / 3), (10, 0.1 + 0.2)), choices=CHOICES, **fields):
    entry = dataclasses.replace(RECORD, seed=seed, fingerprint=f"{seed}e1{fields.get('label', '')}", **fields)
    return published.Published(entry, choices, [{"step": step, "train_loss": 2.0, "val": val} for step, val in curve])


RUNS = [
    run(0, **FILLED),
    run(1, git=None, step_ms=1 / 3, test=0.0),
    run(2, curve=(), status="diverged", val=None, test=None, best_step=None),
    *(run(0, label=label, choices=CHOICES | {"attn.count": 9}) for label in ("none", "NA", "sdpa-model.positions=x,y")),
]


@pytest.fixture
def study(tmp_path):
    published.save(tmp_path / RECORD.study, RUNS)
    return tmp_path / RECORD.study


def test_published_tables_round_trip_is_exact(study):
    loaded = published.read(study)
    assert loaded == {published.run_path(study, run.record): run for run in RUNS}
    row = loaded[published.run_path(study, RUNS[0].record)].evaluations[0]
    assert [type(value) for value in row.values()] == [int, float, float]
    old_files = {path: path.read_bytes() for path in study.iterdir()}
    published.save(study, loaded.values())
    assert {path: path.read_bytes() for path in study.iterdir()} == old_files
    # Each configuration is stored once; the folder of a copy may have another name.
    lines = [json.loads(line) for line in (study / published.CONFIGS).read_text().splitlines()]
    assert {tuple(line["labels"]) for line in lines} == {("cur_abs",), ("NA", "none", "sdpa-model.positions=x,y")}
    assert sorted(name for line in lines for name in line["fingerprints"]) == sorted(r.record.fingerprint for r in RUNS)
    assert all(map(published.find, published.read(study.rename(study.with_name("copy")))))


DAMAGES = {
    "test: Input should be": lambda study: replace_text(study / published.RUNS, ",37.0,", ",137.0,"),
    "KeyError: 'f'": lambda study: replace_text(study / published.RUNS, ",0e1,", ",f,"),
    "FileNotFoundError": lambda study: (study / published.CURVES).unlink(),
    "a study of format 2 (form: ": lambda study: (study / published.ABOUT).write_text('{"command": "", "notes": []}'),
}


@pytest.mark.parametrize("reason", DAMAGES)
def test_damaged_tables_raise_single_line_reason(study, reason):
    DAMAGES[reason](study)
    message = error_message(published.read, study)
    assert message.startswith(str(study)) and reason in message and reader.scan(study.parent) == ({}, [message])


def published_runs(root):
    return {path: run for study in published.studies(root) for path, run in published.read(study).items()}


@functools.cache
def published_suite():
    return published_runs(published.HOME)


def test_published_tables_are_complete_and_consistent(monkeypatch):
    # RunDir.read parses all tables of a study for each run; read them once.
    monkeypatch.setattr(published, "read", functools.cache(published.read))
    for path, run in published_suite().items():
        assert run.record.study == path.parents[2].name and run.record.git and "dirty" not in run.record.git
        loaded = RunDir.read(path)
        assert run.record.fingerprint == config_file.fingerprint(run.choices | {"seed": run.record.seed})
        assert loaded.record == run.record
        # Runs of a learning-rate search differ from seed 0 only in their rates.
        if run.record.seed == 0:
            assert restore_experiment(loaded, "data").label == run.record.label
        if run.record.status == "done":
            assert run.evaluations[-1]["step"] == run.record.steps
            assert run.record.val == max(row["val"] for row in run.evaluations)


@pytest.mark.parametrize("run", WEIGHTS, ids=lambda run: "-".join(run.parts[-4:]))
def test_published_weights_load_into_their_model(run):
    loaded = RunDir.read(run)
    config = restore_experiment(loaded, "data")
    model = load_best_model(loaded, config)
    assert loaded.is_published and sum(p.numel() for p in model.parameters()) == loaded.record.params
    ids = torch.randint(1, config.task.vocab - 1, (2, config.task.towers, min(100, config.task.length)))
    assert model(ids, None).isfinite().all()


def test_published_weights_total_at_most_3_mib():
    assert sum((run / checkpoint.BEST).stat().st_size for run in WEIGHTS) <= 3 * 2**20
    assert {path.name for path in published.HOME.rglob("record.json")} == set()


def test_published_runs_are_scanned_only_if_named_and_listed_by_label():
    assert not set(reader.scan(published.HOME.parent)[0]) & set(published_suite())
    assert reader.scan(published.HOME) == ({path: run.record for path, run in published_suite().items()}, [])
    done = [path for path, run in published_suite().items() if run.record.status == "done"]
    for label in {path.parent for path in published_suite() if path.name == "seed-1"}:
        assert [run.path for run in reader.finished(label)] == sorted(path for path in done if path.parent == label)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Change to a working directory with two finished runs in runs/mine, of which seed 0 has weights."""
    monkeypatch.chdir(tmp_path)
    for seed, run in enumerate(SOURCES):
        folder = write_folder(tmp_path / f"runs/mine/seed-{seed}", {config_file.NAME: yaml.dump(run.choices).encode()})
        if seed == 0:
            shutil.copy(WEIGHTS[0] / checkpoint.BEST, folder)
        (folder / checkpoint.METRICS).write_text(checkpoint.format_metrics(run.evaluations))
        record.save(run.record, folder)
    return tmp_path


@pytest.fixture
def publish_mine(home, call):
    """Publish the runs; returns the exit message, stdout and stderr."""
    return functools.partial(call, publish, "runs=runs/mine", "out=out")


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*")}


def change(folder, **fields):
    record.save(dataclasses.replace(record.load(folder / record.NAME), **fields), folder)


def test_publish_adds_complete_runs_once_in_any_number_of_steps(home, publish_mine, call):
    shutil.move(home / "runs" / "mine" / "seed-1", home / "later")
    _, output, _ = publish_mine()
    assert "1 added, 0 already there" in output and "about.json" in output
    shutil.move(home / "later", home / "runs" / "mine" / "seed-1")
    assert "1 added, 1 already there" in publish_mine()[1]
    assert list(published_runs(home / "out").values()) == SOURCES
    files = {published.RUNS, published.CURVES, published.CONFIGS, published.ABOUT}
    assert {path.name for path in (home / "out").rglob("*.*")} == files
    old_files = contents(home / "out")
    assert "0 added, 2 already there" in publish_mine()[1] and contents(home / "out") == old_files
    # Both runs at once, and published runs, give the same files.
    for runs in ("runs/mine", "out"):
        assert "2 added, 0 already there" in call(publish, f"runs={runs}", f"out={runs}-again")[1]
        assert contents(home / f"{runs}-again") == old_files


def test_publish_copies_weights_of_selected_seeds_exactly(home, publish_mine, monkeypatch):
    flip(home / "runs/mine/seed-0" / checkpoint.BEST)
    assert "best.ckpt cannot be used" in publish_mine("weights=[0]")[0] and not (home / "out").exists()
    flip(home / "runs/mine/seed-0" / checkpoint.BEST)
    publish_mine()
    old_files = contents(home / "out")
    assert "weights=[9]: " in publish_mine("weights=[0,9]")[0]
    publish_mine("weights=[0]")
    (copy,) = (home / "out").rglob(checkpoint.BEST)
    assert copy.parent.name == "seed-0" and copy.read_bytes() == (WEIGHTS[0] / checkpoint.BEST).read_bytes()
    assert RunDir.read(copy.parent).weights == copy and old_files.items() <= contents(home / "out").items()
    # A path may be relative to the folder of the label.
    monkeypatch.chdir(copy.parents[1])
    path = Path("seed-0")
    assert RunDir.read(path).weights == path / checkpoint.BEST and len(published.below(path)) == 1


def test_publish_adds_run_diverged_before_first_evaluation(home, publish_mine):
    run = home / "runs" / "mine" / "seed-1"
    (run / checkpoint.METRICS).unlink()
    change(run, status="diverged", val=None, test=None, best_step=None, steps=7)
    # It has no weights to copy.
    assert publish_mine("weights=[1]")[0] is None
    (copy,) = (run for run in published_runs(home / "out").values() if run.record.status == "diverged")
    assert copy.evaluations == [] and copy.record.steps == 7


def test_publish_adds_run_of_custom_class_only_with_trust(home, publish_mine):
    folder = home / "runs" / "mine" / "seed-1"
    choices = SOURCES[1].choices | {"attn._target_": f"{__name__}.run"}
    (folder / config_file.NAME).write_text(yaml.dump(choices))
    change(folder, fingerprint=config_file.fingerprint(choices | {"seed": 1}))
    assert f"add trust={__name__}" in publish_mine()[0] and "2 added" in publish_mine(f"trust={__name__}")[1]


def test_publish_keeps_runs_that_another_process_adds_meanwhile(home, publish_mine, monkeypatch):
    study = home / "out" / SOURCES[0].record.study
    shutil.rmtree(home / "runs" / "mine" / "seed-1")
    save = published.save

    def read_late(run):
        # The other process adds seed 1 after this one has read the tables.
        if not study.exists():
            save(study, SOURCES[1:])
        return check_and_convert(run)

    def save_locked(folder, runs):
        assert lock.holder(folder / lock.NAME)
        save(folder, runs)

    monkeypatch.setattr("lra.runs.publish.check_and_convert", read_late)
    monkeypatch.setattr(published, "save", save_locked)
    assert "1 added, 0 already there" in publish_mine()[1]
    assert list(published_runs(home / "out").values()) == SOURCES and not (study / lock.NAME).exists()


REJECTED = {
    "code, or resumed by other code (123-dirty)": lambda root: change(root / "seed-1", git="123-dirty"),
    "metrics.csv is not a table of evaluations (it is missing)": lambda root: (root / "seed-1/metrics.csv").unlink(),
    "seed-1/record.json cannot be read, see above": lambda root: (root / "seed-1/record.json").write_text("{}"),
    "the same study, task, label and seed": lambda root: shutil.copytree(root / "seed-0", root / "again"),
}


@pytest.mark.parametrize("reason", REJECTED)
def test_rejected_run_leaves_no_files(home, publish_mine, reason):
    REJECTED[reason](home / "runs" / "mine")
    assert reason in publish_mine()[0] and not (home / "out").exists()


def test_publish_does_not_overwrite_another_run(home, publish_mine):
    publish_mine()
    change(home / "runs" / "mine" / "seed-0", test=1.0)
    old_files = contents(home / "out")
    assert "and runs/mine/seed-0 hold different runs" in publish_mine()[0] and contents(home / "out") == old_files


def test_publish_without_finished_run_or_folder_raises_error(home, call):
    stop, _, _ = call(publish, "runs=nowhere")
    assert stop == "lra: runs=nowhere has no finished run; name a folder of finished runs, runs=runs/<study>"
    assert "a folder of finished runs: runs=runs/<study>" in call(publish)[0]


def test_publish_follows_links_and_reports_unfinished_runs(home, publish_mine):
    root = home / "runs" / "mine"
    write_folder(root / "seed-2", {config_file.NAME: b"a: 1\n"})
    for seed in (1, 2):
        shutil.move(root / f"seed-{seed}", home / f"moved-{seed}")
        (root / f"seed-{seed}").symlink_to(home / f"moved-{seed}")
    assert [folder.seed for folder in reader.finished(root)] == [0, 1]
    _, out, err = publish_mine()
    assert "2 added, 0 already there" in out
    assert "skipped: runs/mine/seed-2 has no record.json: the run is not finished" in err
