"""lra.runs.migrate: a study of the earlier form becomes one of today's, once, and another run is refused."""

import dataclasses
import hashlib
import json

import pytest
import safetensors.torch
import torch
from conftest import config
from support.commands import run
from support.records import RECORD

from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.runs import identity, migrate, tables
from lra.runs.folder import RunFolder
from lra.runs.restore import best, configuration
from lra.train.plan import resolve

PRINTS = {  # of seed 0 in the earlier form
    "task=listops attn=cur_abs": "4536431d7d7c0835",
    "task=text attn=nystrom protocol=clean": "82bcdb2884f5f8ff",
    "experiment=mega_listops": "6918ce9eb2ba3987",
    "experiment=psf_pathfinder": "8bc47ea26da89492",
    "task=image attn=s4d_legs": "10f6208b83904111",
    "task=text attn=s5 block=glu": "02be7f675a00dd93",
}


@pytest.fixture
def study(tmp_path):
    """A study as versions below 0.2 published it: options are missing, a class has an earlier path."""
    made = config("cur_abs", "budget=paper")
    choices = made.choices({})
    added = {key for key in choices if migrate.completed({key: 0} | choices).get(key) in migrate.ADDED.values()}
    old = {key: value for key, value in choices.items() if key not in added & {"optim.cosine", "pretrain.objective"}}
    old["attn.pinv._target_"] = "lra.linalg.cubic"
    runs = []
    for seed in (0, 1):
        fingerprint = identity.fingerprint(migrate.canonical(choices | {"seed": seed}))
        record = dataclasses.replace(RECORD, study="old", seed=seed, fingerprint=fingerprint)
        runs.append(tables.Published(record, old, [{"step": 5, "train_loss": 2.0, "val": 1.0}]))
    tables.save(tmp_path / "old", runs)
    (tmp_path / "old" / "about.json").write_text(json.dumps({"command": "c", "notes": ["é"]}))
    home = tmp_path / "old" / "listops" / "cur_abs" / "seed-0"
    home.mkdir(parents=True)
    torch.manual_seed(0)
    data = safetensors.torch.save(made.classifier().state_dict())
    (home / "best.safetensors").write_bytes(data)
    (home / "SHA256SUMS").write_text(f"{hashlib.sha256(data).hexdigest()}  best.safetensors\n")
    return tmp_path / "old", made, choices


def test_a_study_of_the_earlier_form_is_read_after_it(study, monkeypatch, capfd):
    home, made, choices = study
    with pytest.raises(ValueError, match=r"not the description of a study of form 2 .*lra.runs.migrate folder="):
        tables.read(home)
    assert run(migrate.migrate, f"folder={home}", patch=monkeypatch, capfd=capfd)[0] is None
    found = tables.read(home)
    assert [run.record.seed for run in found.values()] == [0, 1] and tables.about(home).notes == ["é"]
    for path, one in found.items():
        opened = RunFolder.open(path)
        assert opened.choices == choices and one.record.fingerprint == opened.fingerprint
        assert configuration(opened, "data").label == one.record.label
    torch.manual_seed(0)
    expected = made.classifier().state_dict()
    weights = best(RunFolder.open(home / "listops" / "cur_abs" / "seed-0"), made).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in weights.items())
    assert {path.name for path in home.rglob("seed-0/*")} == {"best.ckpt"}
    assert "form 2 already" in run(migrate.migrate, f"folder={home}", patch=monkeypatch, capfd=capfd)[0]


def test_what_is_no_such_study_is_refused_and_stays(study, monkeypatch, capfd):
    home, *_ = study
    before = {path: path.read_bytes() for path in home.rglob("*.*")}
    (home / "listops" / "cur_abs" / "seed-0" / "SHA256SUMS").write_text("")
    stop, _ = run(migrate.migrate, f"folder={home}", patch=monkeypatch, capfd=capfd)
    assert "best.safetensors: its sha256 is not" in stop
    line = (home / tables.CONFIGS).read_text()
    (home / tables.CONFIGS).write_text(line.replace('"optim.lr": ', '"optim.lr": 1'))
    stop, _ = run(migrate.migrate, f"folder={home}", patch=monkeypatch, capfd=capfd)
    assert "its choices are not those of its fingerprint" in stop
    (home / tables.CONFIGS).write_text(line)
    assert all(path.read_bytes() == data for path, data in before.items() if path.name.startswith(("runs", "best")))


@pytest.mark.parametrize("words", PRINTS)
def test_earlier_fingerprints_are_those_that_versions_below_0_2_gave(words):
    choices = resolve(compose(Experiment, words.split())).experiment.choices({})
    assert identity.fingerprint(migrate.canonical(choices | {"seed": 0})) == PRINTS[words]
