"""The experiments of the board: one form for all of them."""

import pytest
from conftest import experiment

from lra.config import CONF
from lra.config.compose import compose
from lra.sweep.options import SweepOptions

TASKS = sorted(path.stem for path in (CONF / "experiment").glob("board_*.yaml"))


@pytest.mark.parametrize("name", TASKS)
def test_a_task_of_the_board(name):
    made = experiment(f"experiment={name}", "attn=cur_abs")
    assert (made.study, made.budget, made.protocol.name) == ("board", "board", "clean")
    assert f"board_{made.task.name}" == name and made.model.dropout == 0 and made.optim.own_lr_max == 1e-3
    assert made.attn.get("count") == made.task.length // 8
    assert type(made.classifier().head.mlp[1]).__name__ == "GELU"


def test_the_sweep_has_every_task_of_the_board():
    assert sorted(compose(SweepOptions, ["sweep=board"]).tasks) == TASKS
