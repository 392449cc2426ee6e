"""Run directories: fingerprints cover every choice, and links to directories are followed or reported."""

import dataclasses
import os
import shutil
import sys
from dataclasses import replace

import pytest
import yaml
from conftest import config, run
from support.records import RECORD, add

from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.evaluate.restore import check_data, configuration
from lra.io.search import find_files
from lra.report.__main__ import report
from lra.runs import config_file, record
from lra.runs.publish import publish
from lra.runs.reader import finished, scan
from lra.runs.run_dir import RunDir, check_choices


def move(path, target):
    """Move a folder to another disk, so to speak, and leave a link."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(path, target)
    path.symlink_to(target, target_is_directory=True)


@pytest.fixture
def runs(tmp_path):
    """Two seeds of one label in tmp_path/runs."""
    for seed in (0, 1):
        add(tmp_path / "runs", seed=seed, test=30.0 + seed)
    return tmp_path / "runs"


LABEL = f"{RECORD.study}/{RECORD.task}/{RECORD.label}"
FOLLOWED = [f"{LABEL}/seed-1", LABEL, f"{RECORD.study}/{RECORD.task}", RECORD.study, "."]


@pytest.mark.parametrize("place", FOLLOWED)
def test_a_link_to_another_disk_is_followed(runs, place, monkeypatch, capfd):
    move(runs / place, runs.parent / "disk" / "moved")
    records, skipped = scan(runs)
    assert sorted(r.test for r in records.values()) == [30.0, 31.0] and not skipped
    assert list(records) == [runs / LABEL / f"seed-{seed}" for seed in (0, 1)]  # paths through the link
    run(report, f"runs={runs}", f"out={runs.parent / 'out'}", patch=monkeypatch, capfd=capfd)
    assert "30.50 ± 0.71" in (runs.parent / "out" / "report.md").read_text()


def link(place, target):
    """A case that adds a link next to the two seeds."""

    def change(runs):
        (runs / place).parent.mkdir(parents=True, exist_ok=True)
        (runs / place).symlink_to(target if isinstance(target, str) else target(runs))

    return change


SKIPPED = {
    "read already": link(f"{RECORD.study}/{RECORD.task}/other", RECORD.label),
    "itself": link("loop", "loop"),
    "its folder": link(f"{LABEL}/seed-0/loop", "."),
    "the root": link("mine", lambda runs: runs),
    "an ancestor": link("all", "/"),
    "nowhere": link("gone", "nothing"),
}
REASONS = {
    "read already": "has been read already",
    "itself": "does not exist",
    "its folder": "has been read already",
    "the root": "has been read already",
    "an ancestor": "links to a parent are not followed",
    "nowhere": "does not exist",
}


@pytest.mark.parametrize("case", SKIPPED)
def test_a_link_that_is_not_followed_is_reported_once(runs, case):
    SKIPPED[case](runs)
    records, (message,) = scan(runs)
    assert len(records) == 2 and REASONS[case] in message and " is a link to " in message


def test_links_in_a_circle_outside_end(runs, tmp_path):
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / name).mkdir()
        (tmp_path / name / other).symlink_to(tmp_path / other)
        (runs / name).symlink_to(tmp_path / name)
    records, messages = scan(runs)
    assert len(records) == 2 and len(messages) == 2 and all("read already" in message for message in messages)


def test_a_linked_folder_is_searched_to_the_depth_of_a_seed(runs, tmp_path):
    for levels in (4, 5):
        path = tmp_path.joinpath("disk", f"down-{levels}", *["x"] * (levels - 1), record.NAME)
        path.parent.mkdir(parents=True)
        path.touch()
    (runs / "disk").symlink_to(tmp_path / "disk")
    found, _ = find_files(runs, {record.NAME})
    assert [str(path.relative_to(runs)) for path in found if "disk" in path.parts] == ["disk/down-4/x/x/x/record.json"]


def test_a_linked_file_is_read_and_a_folder_that_cannot_be_read_is_reported(runs, tmp_path, monkeypatch):
    path = runs / LABEL / "seed-0" / record.NAME
    path.rename(tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    listing = os.scandir
    deny = lambda folder: listing(folder) if "seed-1" not in str(folder) else os.open("/proc/1/mem", os.O_RDONLY)
    monkeypatch.setattr(os, "scandir", deny)
    records, (message,) = scan(runs)
    assert list(records) == [path.parent] and message.startswith(f"{path.parents[1] / 'seed-1'} cannot be read")


def test_the_publisher_adds_every_linked_seed(runs, tmp_path, monkeypatch, capsys):
    for seed in (0, 1):
        home = runs / LABEL / f"seed-{seed}"
        (home / config_file.NAME).write_text("a: 1\n")
        made = dataclasses.replace(RECORD, seed=seed, fingerprint=config_file.fingerprint({"a": 1, "seed": seed}))
        record.save(made, home)
    unfinished = runs / LABEL / "seed-2"
    unfinished.mkdir()
    (unfinished / config_file.NAME).write_text("a: 1\n")
    for seed in (1, 2):
        move(runs / LABEL / f"seed-{seed}", tmp_path / "disk" / f"seed-{seed}")
    assert [folder.seed for folder in finished(runs / LABEL)] == [0, 1]
    monkeypatch.setattr(sys, "argv", ["publish", f"runs={runs}", f"out={tmp_path / 'out'}"])
    publish()
    out, err = capsys.readouterr()
    assert "2 added, 0 there already" in out
    assert f"skipped: {unfinished} has no record.json: the run is not finished" in err


@pytest.mark.parametrize("attn", ["cur_abs", "mega", "psf"])
def test_every_other_value_is_another_run(attn):
    made = config(attn).choices({"name": "listops"})
    changed = [made | {key: "another"} for key in made] + [{k: v for k, v in made.items() if k != key} for key in made]
    prints = {config_file.fingerprint(choices) for choices in [made, *changed]}
    assert len(prints) == 2 * len(made) + 1 > 80
    assert all(config_file.difference(made, choices) for choices in changed) and not config_file.difference(
        made, dict(made)
    )


def test_values_of_two_types_are_two_runs():
    assert len({config_file.fingerprint({"optim.x": value}) for value in (0, 0.0, False, None, "0")}) == 5


@pytest.fixture
def finished_run(tmp_path):
    """The folder of a finished run and its choices."""
    home = tmp_path / "cur_abs" / "seed-0"
    home.mkdir(parents=True)
    made = compose(Experiment, ["task=listops", "attn=cur_abs", "data.pad=none"])
    choices = made.choices(made.task_data().source.provenance)
    (home / "config.yaml").write_text(yaml.safe_dump(choices))
    record.save(replace(RECORD, fingerprint=config_file.fingerprint(choices | {"seed": 0})), home)
    return home, choices


def test_a_run_is_opened_built_and_not_run_again(finished_run):
    home, choices = finished_run
    run = RunDir.read(home)
    restored = configuration(run, "data")
    assert restored.attn.get("pinv").path == "lra.ops.pinv.cubic" and restored.task.display == "expression"
    assert sum(p.numel() for p in restored.meta_model.parameters()) == 209802
    check_data(run, {key.partition(".")[2]: value for key, value in choices.items() if key.startswith("provenance.")})
    assert run.choices == choices and run.record.status == "done"
    check_choices(home, choices)
    with pytest.raises(
        ValueError, match=r"another configuration \(attn.count: 64 -> 8\), see its config.yaml; start a new study"
    ):
        check_choices(home, choices | {"attn.count": 8})


def test_a_configuration_that_was_changed_is_not_that_of_its_record(finished_run):
    home, choices = finished_run
    (home / "config.yaml").write_text(yaml.safe_dump(choices | {"attn.count": 65}))
    record.save(record.load(home / record.NAME), home)
    with pytest.raises(ValueError, match=r"config.yaml and record.json belong to different runs"):
        RunDir.read(home)
