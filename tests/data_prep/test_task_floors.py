"""python -m data_prep.floors, and what a record has of it."""

import pytest
from conftest import config

from data_prep import floors
from data_prep.__main__ import PrepareOptions
from data_prep.adding import Adding
from data_prep.recall import Recall
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.runs import record
from lra.train.__main__ import train

command = floors.floors.__wrapped__


def test_the_floor_of_recall_is_any_value_of_the_row():
    assert [Recall(pairs=pairs).floor for pairs in (1, 2, 8)] == [100.0, 50.0, 12.5] and Adding().floor is None


def test_a_task_has_its_floors_and_a_record_those_that_are_there(data_root, tmp_path, monkeypatch, capsys):
    words = ["task=recall", "budget=smoke", f"data.root={tmp_path}"]
    run = lambda study: train.__wrapped__(config("none", *words, f"runs={tmp_path}", f"study={study}", "seeds=[0]"))
    run("before")
    monkeypatch.setattr("lra.data.bag.EPOCHS", 2)
    command(compose(PrepareOptions, words))
    head, line = capsys.readouterr().out.splitlines()
    constant, analytic, floor, bag = map(float, line.split()[1:])
    assert head.split() == list(floors.HEAD) and analytic == 25 and floor == max(constant, 25)
    monkeypatch.setattr("lra.data.bag.fit", lambda *_, **__: pytest.fail("it is fitted once"))
    command(compose(PrepareOptions, words))
    assert capsys.readouterr().out.splitlines() == [head, line]
    run("after")
    before, after = (record.load(next(tmp_path.glob(f"{study}/**/record.json"))) for study in ("before", "after"))
    assert before.floor == after.floor == floor and before.bag is None and after.bag == pytest.approx(bag, abs=0.005)
    assert before.fingerprint == after.fingerprint and before.test == after.test
    assert after.constant_baseline == pytest.approx(constant, abs=0.005)


def test_real_features_have_no_bag_and_no_task_is_refused(data_root, tmp_path, capsys):
    command(compose(PrepareOptions, ["task=adding", "budget=smoke", f"data.root={tmp_path}"]))
    assert capsys.readouterr().out.splitlines()[1].split()[2::2] == ["-", "-"]
    with pytest.raises(ValueError, match=r"task must be one of all, adding"):
        command(compose(PrepareOptions, []))


@pytest.mark.parametrize("name", ["board_recall", "psf_listops", "spt_listops"])
def test_the_data_of_an_experiment_are_those_of_its_training(name):
    attn = ["attn=none"] * name.startswith("board")
    data, training = compose(PrepareOptions, [f"experiment={name}"]), compose(Experiment, [f"experiment={name}", *attn])
    assert data.task == training.task and data.source == training.source
    assert data.data_overrides == training.data_overrides
    assert compose(PrepareOptions, training.data_overrides).source == data.source
