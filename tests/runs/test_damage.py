"""Tests of damaged run files: a command gives the same result or names the file; training resumes from intact ones."""

import json
import os
import re
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import assert_error, error_message, run_killed, slow
from support.records import PHASE, flip, replace_text
from support.training import FAST, assert_same_files, power_cut, result, seed_folder, smoke, train_config

from data_prep.__main__ import prepare
from lra.bench.__main__ import bench
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.maps.__main__ import show
from lra.report.__main__ import report
from lra.runs import checkpoint, config_file, record
from lra.runs.run_dir import RunDir
from lra.studies.transfer.__main__ import transfer
from lra.studies.transfer.show import show as tables
from lra.train.__main__ import train
from lra.train.pretrain import PretrainDir

SMOKE = ["task=listops", "budget=smoke", "attn=sdpa", "trainer.device=cpu", *FAST]
RUN = "runs/paper-smoke/listops/sdpa/seed-0"
MOVED = f"runs/transfer/{RUN.removeprefix('runs/').replace('sdpa', 'sdpa/mean')}"
GRAFT = [f"run={RUN}", "attn=mean", "examples=4", "spectrum=0", "trainer.device=cpu"]
MEASURED = {"step_ms", "peak_bytes", "git", "date", "command", "sha256"}
WORDS = ("optim.steps=6", "optim.eval_every=3")
DAMAGE = {
    # Turns a digit into another digit.
    "a flipped bit": lambda path: flip(path, 0.5, bit=4),
    "half of it": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
    "of another seed": lambda path: shutil.copy(Path(str(path).replace("seed-0", "seed-1")), path),
}
# name: (entry point, overrides, folder of the damaged files, pattern of the files that are compared)
COMMANDS = {
    "resume": (train, [*SMOKE, "seeds=[0]", "runs=cut"], f"cut{RUN[4:]}", "cut/**/record.json"),
    "again": (train, [*SMOKE, "seeds=[0]"], RUN, "runs/**/record.json"),
    "report": (report, ["out=report"], RUN, "report/tables/*.csv"),
    "bench": (report, ["out=report"], "runs/bench/bench/*", "report/tables/*.csv"),
    "maps": (show, [f"run={RUN}", "out=maps"], RUN, "maps/*.png"),
    "transfer": (transfer, ["runs=new", *GRAFT], RUN, "new/**/transfer.json"),
    "transfer again": (transfer, GRAFT, MOVED, "runs/**/transfer.json"),
    "tables": (tables, ["out=tables"], MOVED, "tables/transfer.md"),
    "data": (train, [*SMOKE, "study=new", "seeds=[9]"], "data/*", "**/seed-9/record.json"),
    "verify": (prepare, [*SMOKE[:2], "verify=true"], "data/*", ""),
}
UNDETECTABLE = {("bench", "missing"), ("tables", "missing")}
QUICK = {("again", "half of it"), ("verify", "a flipped bit"), ("transfer again", "half of it"), ("tables", "empty")}


def results(pattern):
    """Read the files of a pattern below the working directory, without values that differ from run to run."""
    contents = {path: path.read_bytes() for path in sorted(Path().glob(pattern)) if path.is_file()} if pattern else {}
    for path, text in contents.items():
        if path.suffix == ".json":
            tree = {key: value for key, value in json.loads(text).items() if key not in MEASURED}
            # Its contents differ: Lightning counts batches from the start of a process.
            tree.get("files", {}).pop("last.ckpt", None)
            contents[path] = tree
    return contents


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Make a directory with data, finished runs, an interrupted run, transfers and a benchmark."""
    location = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(location)
        patch.setenv("LRA_DATA", "data")
        small = ["n=64", "batch=1", "heads=1", "head_dim=16", "repeats=1", "warmup=0", "device=cpu", "modes=inference"]
        todo = [(train, [*SMOKE, "seeds=[0,1]"]), (bench, ["what=attention", "mechanisms=[naive]", *small])]
        todo += [(transfer, [word.replace("seed-0", f"seed-{seed}") for word in GRAFT]) for seed in (0, 1)]
        for entry, words in todo:
            patch.setattr(sys, "argv", ["lra", *words])
            entry()
        for seed in (0, 1):
            with power_cut(3):
                train_config(compose(Experiment, [*SMOKE, f"seeds=[{seed}]", "runs=cut"]))
    return location


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (name, damage) if (name, damage) in QUICK else slow(name, damage)
        for name, (_, _, location, _) in COMMANDS.items()
        for damage in DAMAGE
        if (damage != "of another seed" or "seed-0" in location) and (name, damage) not in UNDETECTABLE
    ],
)
def test_damage_is_reported_or_changes_no_result(name, damage, whole, tmp_path, monkeypatch, call):
    entry, words, location, pattern = COMMANDS[name]
    monkeypatch.setenv("LRA_DATA", "data")
    (folder,) = whole.glob(location)
    for number, path in enumerate([None, *sorted(path for path in folder.iterdir() if path.is_file())]):
        monkeypatch.chdir(shutil.copytree(whole, tmp_path / str(number)))
        if path is None:
            assert call(entry, *words)[0] is None
            expected = results(pattern)
            assert expected or not pattern
            continue
        DAMAGE[damage](Path(path.relative_to(whole)))
        stop, _, stderr = call(entry, *words)
        if stop is None:
            is_named = any(path.name in line for line in stderr.splitlines())
            assert is_named or (pattern and results(pattern) == expected), f"{path.name}: another result, unreported"
        else:
            assert re.match(r"lra: .*$", stop) and "\n" not in stop and path.name in stop, (path.name, stop)
        shutil.rmtree(tmp_path / str(number))


@pytest.mark.parametrize("name", ["best.ckpt", "metrics.csv"])
@pytest.mark.parametrize("reason, damage", [("it is missing", Path.unlink), ("its sha256", flip)])
def test_pretraining_is_reused_only_from_intact_files(name, reason, damage, tmp_path):
    source, target_dir = tmp_path / "theirs" / "pretrain", tmp_path / "mine" / "pretrain"
    source.mkdir(parents=True)
    torch.save({"weight": torch.zeros(1, 1)}, source / "best.ckpt")
    (source / "metrics.csv").write_text("step,train_loss,val\n1,0.5,3.0\n")
    target = PretrainDir(path=target_dir, choices={}, seed=0, source=source.parent)
    record.save_pretraining(replace(PHASE, fingerprint=target.fingerprint), source)
    content = (source / name).read_bytes()
    damage(source / name)
    assert f"{source}/{name} cannot be used ({reason}" in error_message(target.find_or_copy_finished)
    assert not (target_dir / "pretrain.json").exists() and not list(target_dir.glob(".*"))
    (source / name).write_bytes(content)
    assert target.find_or_copy_finished().status == "done" and (target_dir / name).read_bytes() == content


def test_pretraining_with_another_version_of_a_custom_class_is_not_reused(tmp_path, monkeypatch):
    monkeypatch.setattr(config_file, "custom_code_digests", lambda _: {"mine": "1"})
    source = tmp_path / "theirs" / "pretrain"
    target = PretrainDir(path=tmp_path / "mine" / "pretrain", choices={}, seed=0, source=source.parent)
    pretraining = replace(PHASE, fingerprint=target.fingerprint, sources={"mine": "0"})
    for folder, remedy in ((source, "pretrain again without pretrain.from"), (target.path, "delete that folder")):
        record.save_pretraining(pretraining, folder)
        assert f"{folder} was trained with another version of mine; {remedy}" in error_message(
            target.find_or_copy_finished
        )


@pytest.fixture(scope="module")
def halves(tmp_path_factory, data_root):
    """Return the run directories of two seeds that crashed at step 3, and of the first seed when finished."""
    home = tmp_path_factory.mktemp("halves")
    train_config(smoke(home / "whole", *WORDS))
    for seed in (0, 1):
        with power_cut(3):
            train_config(smoke(home / "cut", *WORDS, f"seeds=[{seed}]"))
    return seed_folder(home / "cut"), seed_folder(home / "cut", seed=1), seed_folder(home / "whole")


def change_form(path):
    state = torch.load(path, weights_only=True)
    state["callbacks"]["Checkpoints"]["form"] = 3
    torch.save(state, path)


change_dim = partial(replace_text, old="model.dim: 64", new="model.dim: 63")
HARM = {
    "last.ckpt cannot be used (its part": lambda home, other: flip(home / "last.ckpt"),
    "best.ckpt cannot be used (it is missing); delete its folder": lambda home, other: (home / "best.ckpt").unlink(),
    "best.ckpt does not hold the weights of": lambda home, other: torch.save({"a": torch.zeros(1)}, home / "best.ckpt"),
    "it is not the file that this training wrote": lambda home, other: shutil.copy(other / "best.ckpt", home),
    "config.yaml is not the configuration of a run": lambda home, other: flip(home / "config.yaml", 0.0),
    "was made by another configuration (model.dim: 63 -> 64)": lambda home, other: change_dim(home / "config.yaml"),
    "last.ckpt has format 3 instead of 2: another version": lambda home, other: change_form(home / "last.ckpt"),
    "last.ckpt is not the state of a run of this version": lambda home, other: torch.save({}, home / "last.ckpt"),
    "last.ckpt was written by another run": lambda home, other: shutil.copytree(other, home, dirs_exist_ok=True),
}


@pytest.mark.parametrize("message", HARM)
def test_training_does_not_resume_from_changed_files(halves, tmp_path, data_root, message):
    folder, other, _ = halves
    home = shutil.copytree(folder, seed_folder(tmp_path))
    HARM[message](home, other)
    actual = error_message(train_config, smoke(tmp_path, *WORDS))
    assert message in actual and "resumes" not in actual and not (home / "record.json").exists()


def test_wrong_command_does_not_write_a_lost_configuration(halves, tmp_path, data_root):
    home = shutil.copytree(halves[0], seed_folder(tmp_path), ignore=shutil.ignore_patterns("config.yaml"))
    message = error_message(train_config, smoke(tmp_path, *WORDS, "optim.lr=0.5"))
    assert "last.ckpt was written by another run" in message and not (home / "config.yaml").exists()
    train_config(smoke(tmp_path, *WORDS))
    assert result(home) == result(halves[2])


@pytest.mark.parametrize("is_valid", [False, True])
def test_next_best_weights_replace_best_ckpt_only_if_last_ckpt_names_them(halves, tmp_path, data_root, is_valid):
    home = shutil.copytree(halves[0], seed_folder(tmp_path))
    best, next_best = home / checkpoint.BEST, home / checkpoint.NEXT_BEST
    # Killed before or after the last.ckpt of the same step was written.
    if is_valid:
        best.rename(next_best)
        torch.save({"a": torch.zeros(1)}, best)
    else:
        torch.save({"a": torch.zeros(1)}, next_best)
    train_config(smoke(tmp_path, *WORDS))
    assert result(home) == result(halves[2]) and not next_best.exists()


@pytest.mark.parametrize("harm", [Path.unlink, flip])
def test_lost_metrics_csv_is_restored_from_checkpoint(halves, tmp_path, data_root, harm):
    home = shutil.copytree(halves[0], seed_folder(tmp_path))
    harm(home / "metrics.csv")
    train_config(smoke(tmp_path, *WORDS))
    assert result(home) == result(halves[2])
    assert (home / "metrics.csv").read_bytes() == (halves[2] / "metrics.csv").read_bytes()


@pytest.mark.parametrize("name", ["last.ckpt", "best.ckpt", "metrics.csv", "config.yaml"])
def test_changed_file_of_finished_run_fails_sha256_check(halves, tmp_path, name):
    home = shutil.copytree(halves[2], tmp_path / "seed-0")
    readers = {"metrics.csv": checkpoint.read_metrics, "config.yaml": RunDir.read}
    read = readers.get(name, lambda home: checkpoint.read(home / name))
    read(home)
    flip(home / name)
    assert_error(rf"{name} .* \(its sha256 does not match the record.json or pretrain.json", read, home)


def test_record_of_another_seed_is_rejected(halves, tmp_path, data_root):
    shutil.copytree(halves[2], seed_folder(tmp_path, seed=1))
    with pytest.raises(ValueError, match=r"record.json belongs to seed 0; move it to its own folder, or delete it"):
        train_config(smoke(tmp_path, *WORDS, "seeds=[1]"))


@pytest.mark.slow
def test_resume_after_kill_at_any_file_write_is_exact(tmp_path, data_root):
    words, files, status = ("optim.steps=9", "optim.eval_every=3"), 0, 9
    train_config(smoke(tmp_path / "whole", *words))
    whole = seed_folder(tmp_path / "whole")
    while status == 9:
        runs = tmp_path / str(files)
        status = run_killed(partial(train_config, smoke(runs, *words)), files, (Path, "replace"))
        train_config(smoke(runs, *words))
        home = seed_folder(runs)
        assert result(home) == result(whole)
        assert_same_files(home, whole, ["metrics.csv", "config.yaml"], ["best.ckpt"])
        files += 1
    # The configuration, the record, and at least seven files of three evaluations.
    assert status == 0 and files > 8
