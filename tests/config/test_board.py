"""The experiments of the board: one form for all of them."""

import pytest

from lra.config import CONF
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.sweep.options import SweepOptions

TASKS = sorted(path.stem for path in (CONF / "experiment").glob("board_*.yaml"))


@pytest.mark.parametrize("experiment", TASKS)
def test_a_task_of_the_board(experiment):
    config = compose(Experiment, [f"experiment={experiment}", "attn=cur_abs"])
    task, model, optim = config.task, config.model, config.optim
    assert (config.study, config.budget, config.protocol.name, f"board_{task.name}") == (
        "board",
        "board",
        "clean",
        experiment,
    )
    assert model.dropout == 0 and model.head.kind == "gelu" and optim.own_lr_max == 1e-3
    assert config.attn.count == task.length // 8
    assert config.classifier().head.mlp[1].__class__.__name__ == "GELU"


def test_the_sweep_has_every_task_of_the_board():
    assert sorted(compose(SweepOptions, ["sweep=board"]).tasks) == TASKS
