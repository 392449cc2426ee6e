"""A stranger's folder: what its files say neither chooses where something is written nor ends in a traceback."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from conftest import config, run
from support.records import PHASE, add, instead

from lra.data import store
from lra.disk import atomic
from lra.report.__main__ import report
from lra.runs import metrics_file, pretrain_dir
from lra.runs.pretrain_dir import PretrainDir
from lra.runs.reader import history
from lra.studies.factorise.__main__ import saved
from lra.studies.probes.report import matrices, matrix
from lra.sweep import job


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
    store.write(tmp_path / "set", {"train": [rows]}, provenance={"name": "toy"})
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
    pretrain_dir.save(replace(PHASE, fingerprint=target.fingerprint), home)
    TAKEN[told](home)
    with pytest.raises(ValueError, match=f"{home}/{told}"):
        target.find_finished()
    assert not (mine / "pretrain.json").exists() and not list(mine.glob(".*"))
    for name, content in whole.items():
        (home / name).unlink(missing_ok=True)
        (home / name).write_bytes(content)
    assert target.find_finished().status == "done" and metrics_file.read(mine)
    assert all((mine / name).read_bytes() == content for name, content in whole.items())
    (mine / "metrics.csv").write_text("step,train_loss,val\n1,0.5,4.0\n")
    with pytest.raises(
        ValueError, match=r"metrics.csv .* \(its sha256 is not the one in the record.json or pretrain.json"
    ):
        metrics_file.read(mine)


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
