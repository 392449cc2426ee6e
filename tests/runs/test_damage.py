"""Damaged files and strangers' folders: the command gives the same result, or one line with the name of the file."""

import json
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from conftest import config, run
from support.records import PHASE, add, flip, instead
from support.training import power_cut, train_config

from data_prep.__main__ import prepare
from lra.bench.__main__ import bench
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.data import store, store_writer
from lra.io import atomic
from lra.maps.__main__ import show
from lra.report.__main__ import report
from lra.runs import checkpoint, record
from lra.runs.reader import history
from lra.studies.factorise.__main__ import saved
from lra.studies.probes.report import matrices, matrix
from lra.studies.transfer.__main__ import transfer
from lra.studies.transfer.show import show as tables
from lra.sweep import job
from lra.train.__main__ import train
from lra.train.pretrain import PretrainDir

SMOKE = ["task=listops", "budget=smoke", "attn=sdpa", "trainer.device=cpu"]
RUN = "runs/paper-smoke/listops/sdpa/seed-0"
MOVED = f"runs/transfer/{RUN.removeprefix('runs/').replace('sdpa', 'sdpa/mean')}"
GRAFT = [f"run={RUN}", "attn=mean", "examples=4", "spectrum=0", "trainer.device=cpu"]
MEASURED = {"step_ms", "peak_bytes", "git", "date", "command", "sha256"}  # differ from run to run


def not_a_number(path):
    """Replace a number by NaN; in a binary file, eight bytes by ones, which are a NaN."""
    if path.suffix == ".ckpt":
        state = torch.load(path, weights_only=True)
        next(iter(state.get("state_dict", state).values())).fill_(float("nan"))
        torch.save(state, path)
    elif path.suffix == ".bin":
        path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:])
    else:
        word = {".yaml": ".nan", ".csv": "nan"}.get(path.suffix, "NaN")
        path.write_text(re.sub(r"(?<![\w.\-])-?\d+(\.\d+)?", word, path.read_text(), count=1))


DAMAGE = {
    "a flipped bit": lambda path: flip(path, 0.5, bit=4),  # of a digit, it makes another digit
    "half of it": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
    "a folder": lambda path: instead(path, Path.mkdir),
    "a pipe": lambda path: instead(path, os.mkfifo),
    "another kind of file": lambda path: path.write_bytes(b"\x93\x00\xff" * 99),
    "not a number": not_a_number,
    "of another seed": lambda path: shutil.copy(Path(str(path).replace("seed-0", "seed-1")), path),
}
# name: (command, its words, the folder of the files, the files that the command is compared by)
COMMANDS = {
    "resume": (train, [*SMOKE, "seeds=[0]", "runs=cut"], f"cut{RUN[4:]}", "cut/**/record.json"),
    "again": (train, [*SMOKE, "seeds=[0]"], RUN, "runs/**/record.json"),
    "report": (report, ["out=report"], RUN, "report/tables/*.csv"),
    "bench": (report, ["out=report"], "runs/bench/bench/*", "report/tables/*.csv"),
    "maps": (show, [f"run={RUN}", "out=maps"], RUN, "maps/*.png"),
    "transfer": (transfer, ["runs=new", *GRAFT], RUN, "new/**/transfer.json"),
    "transfer again": (transfer, GRAFT, MOVED, "runs/**/transfer.json"),
    "tables": (tables, ["out=tables"], MOVED, "tables/transfer.md"),
    "data": (train, [*SMOKE, "seeds=[9]", "optim.steps=4", "optim.eval_every=4"], "data/*", "**/seed-9/record.json"),
    "verify": (prepare, [*SMOKE[:2], "verify=true"], "data/*", ""),
}
UNKNOWABLE = {("bench", "missing"), ("tables", "missing")}  # nothing else says that the file was there
QUICK = {("again", "a pipe"), ("verify", "a flipped bit"), ("transfer again", "half of it"), ("tables", "not a number")}


def results(pattern):
    """Read the files of a pattern below the working directory, without the numbers that differ from run to run."""
    found = {path: path.read_bytes() for path in sorted(Path().glob(pattern)) if path.is_file()} if pattern else {}

    def plain(text):
        tree = {key: value for key, value in json.loads(text).items() if key not in MEASURED}
        tree.get("files", {}).pop("last.ckpt", None)  # Lightning counts batches from the start of a process
        return tree

    return {path: plain(data) if path.suffix == ".json" else data for path, data in found.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with data, finished runs, an interrupted one, transfers and a benchmark."""
    place = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
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
    return place


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        pytest.param(name, damage, marks=[] if (name, damage) in QUICK else pytest.mark.slow)
        for name, (_, _, place, _) in COMMANDS.items()
        for damage in DAMAGE
        if (damage != "of another seed" or "seed-0" in place) and (name, damage) not in UNKNOWABLE
    ],
)
def test_damage_changes_no_result_without_a_word(name, damage, whole, tmp_path, monkeypatch, capfd):
    entry, words, place, pattern = COMMANDS[name]
    monkeypatch.setenv("LRA_DATA", "data")
    (folder,) = whole.glob(place)
    for number, path in enumerate([None, *sorted(path for path in folder.iterdir() if path.is_file())]):
        monkeypatch.chdir(shutil.copytree(whole, tmp_path / str(number)))
        if path is None:
            stop, _ = run(entry, *words, patch=monkeypatch, capfd=capfd)
            assert stop is None
            expected = results(pattern)
            assert expected or not pattern
            continue
        DAMAGE[damage](Path(path.relative_to(whole)))
        stop, told = run(entry, *words, patch=monkeypatch, capfd=capfd)
        if stop is None:
            named = any(path.name in line for line in told.splitlines())
            assert named or (pattern and results(pattern) == expected), f"{path.name}: another result without a word"
        else:
            assert re.match(r"lra: .*$", stop) and "\n" not in stop and path.name in stop, (path.name, stop)
        shutil.rmtree(tmp_path / str(number))


@pytest.mark.parametrize("names", [("maps",), ("pretrain", "best.ckpt"), ("train.log",)])
def test_nothing_is_written_through_a_link(names, tmp_path):
    home = tmp_path / "run"
    atomic.below(home, *names).mkdir()
    for link in (home.joinpath(*names[: i + 1]) for i in range(len(names))):
        if link.exists():
            os.rename(link, tmp_path / "elsewhere")
        link.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(ValueError, match=f"{link} is a link, and nothing is written through links; delete it"):
            atomic.below(home, *names)
        link.unlink()
        link.mkdir()


def test_the_log_of_a_sweep_is_not_appended_to_another_file(tmp_path, monkeypatch):
    (tmp_path / "train.log").symlink_to(tmp_path / "other")
    own = type("", (), {"runtime": type("", (), {"output_dir": str(tmp_path)})})
    monkeypatch.setattr(job.HydraConfig, "get", staticmethod(lambda: own))
    with pytest.raises(ValueError, match=r"train\.log is a link"):
        job.job(None, cwd=".", threads=None, gpus=[], sweep=0, latest={})
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("linked", ["report", "report/tables", "report/figures"])
def test_a_report_is_not_written_elsewhere(linked, tmp_path, monkeypatch, capfd):
    add(tmp_path / "runs")
    (tmp_path / "other").mkdir()
    path = tmp_path / "runs" / linked
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(tmp_path / "other")
    stop, _ = run(report, f"runs={tmp_path / 'runs'}", patch=monkeypatch, capfd=capfd)
    assert f"{path} is a link" in stop and not list((tmp_path / "other").iterdir())


def test_a_configuration_that_is_refused_ends_no_sweep(tmp_path, capfd):
    good, bad = (add(tmp_path, label=label).parent for label in ("good", "bad"))
    (good / "config.yaml").write_text("attn.count: 3\n")
    (bad / "config.yaml").write_text("model: 3\nmodel.dim: 4\n")
    assert {r.label: choices for r, choices in history(tmp_path)} == {"good": {"attn.count": 3}}
    told = capfd.readouterr().err
    assert str(bad / "config.yaml") in told and len(told.splitlines()) == 1 and len(told) < 400


VALUES = [None, 0, -1, 2**70, 1.5, "x", "../x", [], [-1], ["3"], [2**70], [1.5], [None], {}, True, [[1]]]


def test_a_data_set_is_described_by_its_meta_json_or_refused(tmp_path):
    rows = store.ExampleChunk(np.arange(1, 7, dtype=np.uint8), np.array([2, 4]), np.array([0, 1]))
    store_writer.write(tmp_path / "set", {"train": [rows]}, provenance={"name": "toy"})
    path = tmp_path / "set" / "meta.json"
    (tmp_path / "set" / store.SUMS).unlink()
    meta, refused = json.loads(path.read_text()), 0
    name = "train.tokens.bin"
    changes = [meta | {key: value} for key in meta for value in VALUES]
    of_file = lambda value: meta | {"files": meta["files"] | {name: value}}
    changes += map(of_file, VALUES)
    changes += [of_file(meta["files"][name] | {key: value}) for key in meta["files"][name] for value in VALUES]
    for changed in [*changes, *VALUES]:
        path.write_text(json.dumps(changed))
        for call in (store.load, store.verify):
            try:
                call(tmp_path / "set")
            except store.StoreError as error:
                refused += 1
                assert str(tmp_path / "set") in str(error) and "\n" not in str(error)
    assert refused > 200


TAKEN = {
    r"best.ckpt cannot be used \(it is missing": lambda home: (home / "best.ckpt").unlink(),
    r"best.ckpt cannot be used \(it is not a regular": lambda home: instead(
        home / "best.ckpt", lambda path: path.symlink_to("/dev/zero")
    ),
    r"best.ckpt cannot be used \(its sha256": lambda home: (home / "best.ckpt").write_bytes(b"x"),
    r"metrics.csv cannot be used \(it is not a regular": lambda home: instead(home / "metrics.csv", os.mkfifo),
    r"metrics.csv cannot be used \(its sha256": lambda home: (home / "metrics.csv").write_text("a\n1\n"),
}


@pytest.mark.parametrize("told", TAKEN)
def test_a_pretraining_is_taken_from_regular_files_that_are_whole(told, tmp_path):
    made = config("sdpa", "pretrain=masked", f"pretrain.from={tmp_path / 'theirs'}", f"runs={tmp_path}")
    choices, (home, mine) = {"seed": 0}, (tmp_path / name / "pretrain" for name in ("theirs", "mine"))
    home.mkdir(parents=True), mine.parent.mkdir()
    (home.parent / "config.yaml").write_text(yaml.safe_dump(choices))
    torch.save({"weight": torch.zeros(1, 1)}, home / "best.ckpt")
    (home / "metrics.csv").write_text("step,train_loss,val\n1,0.5,3.0\n")
    whole = {name: (home / name).read_bytes() for name in ("best.ckpt", "metrics.csv")}
    target = PretrainDir(path=mine, choices={}, seed=0, source=made.pretrain.from_)
    record.save_pretraining(replace(PHASE, fingerprint=target.fingerprint), home)
    TAKEN[told](home)
    with pytest.raises(ValueError, match=f"{home}/{told}"):
        target.find_finished()
    assert not (mine / "pretrain.json").exists() and not list(mine.glob(".*"))
    for name, content in whole.items():
        (home / name).unlink(missing_ok=True)
        (home / name).write_bytes(content)
    assert target.find_finished().status == "done" and checkpoint.read_metrics(mine)
    assert all((mine / name).read_bytes() == content for name, content in whole.items())
    (mine / "metrics.csv").write_text("step,train_loss,val\n1,0.5,4.0\n")
    with pytest.raises(
        ValueError, match=r"metrics.csv .* \(its sha256 is not the one in the record.json or pretrain.json"
    ):
        checkpoint.read_metrics(mine)


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"PK\x03\x04", b"asked"])
def test_a_foreign_npz_is_a_line(content, tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a.npz is not a result of this study \("):
        saved(path, {})
    for arrays in ({}, {"asked": "{"}, {"asked": "{}"}, {"asked": np.array([{}], dtype=object)}):
        np.savez(path, **arrays)
        with pytest.raises(ValueError, match=r"a.npz is not a result of this study \("):
            saved(path, {})


@pytest.mark.parametrize(
    "content", [b"", b"\xff\x00", b"a,b\n1\n", b'"', b"a,b,b\n1,2,3\n", b"scored with,score\nown,x\n"]
)
def test_damaged_swaps_are_a_line(content, tmp_path, capfd):
    seed = tmp_path / "probes" / "s" / "listops" / "sdpa" / "seed-0"
    seed.mkdir(parents=True)
    (seed / "swaps.csv").write_bytes(content)
    with pytest.raises(ValueError, match=r"swaps.csv is not a line of scores"):
        matrix(seed.parents[2], "swaps.csv")
    (seed.parents[2] / "swaps.csv").write_bytes(content)
    row = type("", (), {"runs": {tmp_path / "s" / "listops" / "sdpa" / "seed-0": None}})
    assert matrices("s", [row]) == [] and "swaps.csv is not a matrix of scores" in capfd.readouterr().err
