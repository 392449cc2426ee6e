"""A stranger's folder: what its files say neither chooses where something is written nor ends in a traceback."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from conftest import config, run
from support.records import add

from lra.data import store
from lra.disk import atomic
from lra.report.__main__ import report
from lra.runs import checkpoint, config_file, evaluations, pretraining, record
from lra.runs.open import history
from lra.studies.factorise.__main__ import saved
from lra.studies.probes import record as probes
from lra.studies.probes.report import matrices
from lra.studies.probes.show import matrix
from lra.sweep import job
from lra.train import pretrain


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


@pytest.mark.parametrize("trust", ["lra", "lra.disk.atomic", "data_prep", ["os", "lra.disk"]])
def test_no_trust_opens_the_whole_suite(trust):
    for target in ("lra.disk.atomic.write", "lra.data.source.Source.__init__", "lra.sweep.job.fail"):
        with pytest.raises(ValueError, match=r"is no part of a model|is not of this suite|there is no"):
            config_file.check_trust({"attn._target_": target}, "config.yaml", trust)


WEIGHTS = {"weight": torch.zeros(1, 1), "bias": torch.zeros(1)}
HELD = {
    "integer keys": WEIGHTS | {1: torch.zeros(1)},
    "meta tensors": {name: value.to("meta") for name, value in WEIGHTS.items()},
    "sparse tensors": {name: value.to_sparse() for name, value in WEIGHTS.items()},
    "numbers": dict.fromkeys(WEIGHTS, 1.0),
    "a value that is not finite": WEIGHTS | {"bias": torch.full((1,), float("nan"))},
    "a list": list(WEIGHTS),
}


@pytest.mark.parametrize("held", HELD)
def test_a_checkpoint_holds_weights_by_name(held, tmp_path):
    model = torch.nn.Linear(1, 1)
    torch.save(HELD[held], tmp_path / "best.ckpt")
    ours = {"form": 2, "fingerprint": "f", "curve": [{}], "best_score": 1.0, "best_step": 1, "train_loss": 1.0}
    ours |= {"digest": "d"}
    parts = {"callbacks": {"Checkpoints": ours}, "global_step": 1, "loops": {}}
    parts |= {"lr_schedulers": [], "optimizer_states": []}
    torch.save(parts | {"state_dict": WEIGHTS}, tmp_path / "last.ckpt")
    assert checkpoint.state(tmp_path / "last.ckpt")["global_step"] == 1
    for load in (checkpoint.weights, lambda path: checkpoint.load_weights(model, path)):
        with pytest.raises(
            ValueError, match=r"best.ckpt does not hold finite weights by their names; delete its folder"
        ):
            load(tmp_path / "best.ckpt")
    torch.save(parts | {"state_dict": HELD[held]}, tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match=r"last.ckpt is not the state of a run"):
        checkpoint.state(tmp_path / "last.ckpt")


VALUES = [None, 0, -1, 2**70, 1.5, "x", "../x", [], [-1], ["3"], [2**70], [1.5], [None], {}, True, [[1]]]


def test_a_data_set_is_described_by_its_meta_json_or_refused(tmp_path):
    rows = store.ExampleChunk(np.arange(1, 7, dtype=np.uint8), np.array([2, 4]), np.array([0, 1]))
    store.write(tmp_path / "set", {"train": [rows]}, provenance={"name": "toy"})
    path = tmp_path / "set" / "meta.json"
    (tmp_path / "set" / store.SUMS).unlink()
    meta, refused = json.loads(path.read_text()), 0
    name = "train.tokens.bin"
    changes = [meta | {key: value} for key in meta for value in VALUES]
    changes += [meta | {"files": meta["files"] | {name: value}} for value in VALUES]
    changes += [
        meta | {"files": meta["files"] | {name: meta["files"][name] | {key: value}}}
        for key in meta["files"][name]
        for value in VALUES
    ]
    for changed in [*changes, *VALUES]:
        path.write_text(json.dumps(changed))
        for call in (store.load, store.verify):
            try:
                call(tmp_path / "set")
            except store.StoreError as error:
                refused += 1
                assert str(tmp_path / "set") in str(error) and "\n" not in str(error)
    assert refused > 200


PHASE = record.Pretraining(
    objective="masked", fingerprint="", loss=0.1, best_step=1, steps=2, tokens=3, step_ms=None, status="done"
)


def instead(path, make):
    path.unlink()
    make(path)


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
    torch.save(WEIGHTS, home / "best.ckpt")
    (home / "metrics.csv").write_text("step,train_loss,val\n1,0.5,3.0\n")
    whole = {name: (home / name).read_bytes() for name in ("best.ckpt", "metrics.csv")}
    pretraining.save(replace(PHASE, fingerprint=pretraining.fingerprint(choices)), home)
    TAKEN[told](home)
    with pytest.raises(ValueError, match=f"{home}/{told}"):
        pretrain.before(made, mine, choices)
    assert not (mine / "pretrain.json").exists() and not list(mine.glob(".*"))
    for name, content in whole.items():
        (home / name).unlink(missing_ok=True)
        (home / name).write_bytes(content)
    assert pretrain.before(made, mine, choices).status == "done" and evaluations.read(mine)
    assert all((mine / name).read_bytes() == content for name, content in whole.items())
    (mine / "metrics.csv").write_text("step,train_loss,val\n1,0.5,4.0\n")
    with pytest.raises(
        ValueError,
        match=r"metrics.csv is not .* \(its sha256 is not the one in the record.json or pretrain.json beside it",
    ):
        evaluations.read(mine)


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
        matrix(seed.parents[2])
    (seed.parents[2] / "swaps.csv").write_bytes(content)
    row = type("", (), {"runs": {tmp_path / "s" / "listops" / "sdpa" / "seed-0": None}})
    assert matrices("s", [row]) == [] and "swaps.csv is not a matrix of scores" in capfd.readouterr().err


def test_damaged_probes_are_a_line_of_the_report(tmp_path):
    home = add(tmp_path).parent
    path = probes.folder(tmp_path, *home.parts[-4:-1], 0) / probes.NAME
    path.parent.mkdir(parents=True)
    path.write_text("{")
    command = [sys.executable, "-m", "lra.report", f"runs={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and f"skipped: {path} is not a record of probes" in done.stderr
