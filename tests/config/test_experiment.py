"""An experiment: one frozen value, from which model and data are made once; its choices are those of a table."""

import csv
from pathlib import Path

import pytest
from conftest import config, experiment
from pydantic import ValidationError

from lra.config import CONF
from lra.config.compose import compose
from lra.runs import config_file
from lra.sweep.options import SweepOptions


def test_what_the_model_depends_on_makes_a_new_sketch():
    made = config("sdpa", "model.dim=32")
    wider = made.replace(model=made.model.replace(dim=64))
    assert made.meta_model is made.replace(data=made.data.replace(pad="batch")).meta_model
    assert made.meta_model.encoded_width == 32 and wider.meta_model.encoded_width == 64


def test_values_are_frozen_and_a_change_is_checked():
    made = config("sdpa")
    with pytest.raises(ValidationError, match="frozen"):
        made.optim.lr = 1.0
    with pytest.raises(ValueError, match=r"^optim\.eval_every must divide optim\.steps 7, not 3: add optim.eval"):
        made.optim.replace(steps=7)


with Path(__file__).with_name("choices.csv").open() as _file:
    TABLE = list(csv.DictReader(_file))


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row["words"], marks=[pytest.mark.slow] * (i % 10 > 0)) for i, row in enumerate(TABLE)]
)
def test_label_and_choices_are_those_of_the_table(row):
    made = experiment(*row["words"].split())
    assert (made.label, config_file.fingerprint(made.choices({}))) == (row["label"], row["fingerprint"])


TASKS = sorted(path.stem for path in (CONF / "experiment").glob("board_*.yaml"))


@pytest.mark.parametrize("name", TASKS)
def test_a_task_of_the_board(name):
    made = experiment(f"experiment={name}", "attn=cur_abs")
    assert (made.study, made.budget, made.protocol.name) == ("board", "board", "clean")
    assert f"board_{made.task.name}" == name and made.model.dropout == 0 and made.optim.own_lr_max == 1e-3
    assert made.attn.get("count") == made.task.length // 8


def test_the_sweep_has_every_task_of_the_board_but_the_one_that_was_dropped():
    assert sorted(compose(SweepOptions, ["sweep=board"]).tasks) == [task for task in TASKS if task != "board_listops"]
