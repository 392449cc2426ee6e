"""python -m data_prep and data_prep.floors: what there is, every task, and what a record has of its floors."""

import hashlib
import re
from functools import partial

import pytest
from conftest import config, printed

from data_prep import __main__ as command
from data_prep import floors
from data_prep.__main__ import PrepareOptions
from data_prep.adding import Adding
from data_prep.listops import ListOps
from data_prep.recall import Recall
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.runs import record
from lra.train.__main__ import train

tell = floors.floors.__wrapped__


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """The command over an empty data folder: exit message, None where it ends well, stdout and stderr."""
    monkeypatch.setenv("LRA_DATA", str(tmp_path / "data"))
    return partial(printed, command.prepare, patch=monkeypatch, capfd=capfd)


def blocks(out):
    """Lines of each task."""
    parts = re.split(r"^(?=\S)", out, flags=re.M)[1:]
    return {part.split("\n")[0]: part for part in parts}


def test_list_names_every_task_and_how_to_get_it(run, tmp_path):
    stop, out, _ = run()
    assert stop is None and list(blocks(out)) == command.TASKS and not (tmp_path / "data").exists()
    for text in blocks(out).values():
        assert "not prepared" in text or "nothing to prepare" in text
        assert "  source  " in text and "  licence  " in text
    assert "train 200,000, val 5,000, test 5,000" in blocks(out)["adding"]
    assert "lra data task=listops" in blocks(out)["listops"]
    assert "source.dog=<path> source.donkey=<path>" in blocks(out)["genome"]


def test_list_knows_what_is_prepared_and_what_is_damaged(run, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "TASKS", ["adding", "listops"])
    run("task=listops", "budget=smoke")
    (meta,) = (tmp_path / "data").glob("*/meta.json")
    sha = hashlib.sha256(meta.read_bytes()).hexdigest()[:12]
    line = f"train 256, val 64, test 64; 0.0 MB; sha256 {sha}; {meta.parent}"
    assert f"  prepared      {line}" in blocks(run("budget=smoke")[1])["listops"]
    paper = blocks(run()[1])["listops"]
    assert "not prepared" in paper and f"  other choices {line}" in paper
    (meta.parent / "val.tokens.bin").write_bytes(b"")
    assert "is damaged: 0 bytes instead of" in blocks(run("budget=smoke")[1])["listops"]


def test_all_prepares_what_can_be_made_and_leaves_out_what_its_user_must_bring(run, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "TASKS", ["adding", "genome", "listops", "temporal_order"])
    stop, _, err = run("task=all", "budget=smoke")
    assert stop is None and len(list((tmp_path / "data").glob("*/"))) == 1
    assert "genome: left out" in err and "adding_N128: train 256" in err and "listops: train 256" in err
    assert "every checksum is right" in run("task=all", "budget=smoke", "verify=true")[2]


def test_all_goes_on_after_a_failure_and_ends_with_it(run, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "TASKS", ["adding", "listops", "temporal_order"])
    monkeypatch.setattr(ListOps, "splits", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left")))
    stop, _, err = run("task=all", "budget=smoke")
    assert "1 of 3 tasks failed: listops" in stop and "No space left" in stop and "\n" not in stop
    assert "listops: failed" in err and "temporal_order_N128: train 256" in err


def test_synthetic_data_has_nothing_to_store(run, tmp_path):
    stop, _, err = run("task=adding", "task.length=16384")
    assert stop is None and "adding_N16384: train 200,000, val 5,000, test 5,000 examples, made as they are read" in err
    with pytest.raises(ValueError, match="adding is made as it is read, there is nothing to store"):
        Adding().splits(workers=1, progress=None)
    assert not (tmp_path / "data").exists()


def test_the_floor_of_recall_is_any_value_of_the_row():
    assert [Recall(pairs=pairs).floor for pairs in (1, 2, 8)] == [100.0, 50.0, 12.5] and Adding().floor is None


def test_a_task_has_its_floors_and_a_record_those_that_are_there(data_root, tmp_path, monkeypatch, capsys):
    words = ["task=recall", "budget=smoke", f"data.root={tmp_path}"]
    run = lambda study: train.__wrapped__(config("none", *words, f"runs={tmp_path}", f"study={study}", "seeds=[0]"))
    run("before")
    monkeypatch.setattr("lra.data.bag.EPOCHS", 2)
    tell(compose(PrepareOptions, words))
    head, line = capsys.readouterr().out.splitlines()
    constant, analytic, floor, bag = map(float, line.split()[1:])
    assert head.split() == list(floors.HEAD) and analytic == 25 and floor == max(constant, 25)
    monkeypatch.setattr("lra.data.bag.fit", lambda *_, **__: pytest.fail("it is fitted once"))
    tell(compose(PrepareOptions, words))
    assert capsys.readouterr().out.splitlines() == [head, line]
    run("after")
    before, after = (record.load(next(tmp_path.glob(f"{study}/**/record.json"))) for study in ("before", "after"))
    assert before.floor == after.floor == floor and before.bag is None and after.bag == pytest.approx(bag, abs=0.005)
    assert before.fingerprint == after.fingerprint and before.test == after.test
    assert after.constant_baseline == pytest.approx(constant, abs=0.005)


def test_real_features_have_no_bag_and_no_task_is_refused(data_root, tmp_path, capsys):
    tell(compose(PrepareOptions, ["task=adding", "budget=smoke", f"data.root={tmp_path}"]))
    assert capsys.readouterr().out.splitlines()[1].split()[2::2] == ["-", "-"]
    with pytest.raises(ValueError, match=r"task must be one of all, adding"):
        tell(compose(PrepareOptions, []))


@pytest.mark.parametrize("name", ["board_recall", "psf_listops", "spt_listops"])
def test_the_data_of_an_experiment_are_those_of_its_training(name):
    attn = ["attn=none"] * name.startswith("board")
    data, training = compose(PrepareOptions, [f"experiment={name}"]), compose(Experiment, [f"experiment={name}", *attn])
    assert data.task == training.task and data.source == training.source
    assert data.data_overrides == training.data_overrides
    assert compose(PrepareOptions, training.data_overrides).source == data.source
