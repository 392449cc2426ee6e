"""Data that the model or the loss of a task is not made for."""

import pytest

from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.train.plan import check_data


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (-100, "labels must be 0 or more, not -100, the least of train"),  # the cross entropy would ignore it
        (-1, "labels must be 0 or more, not -1, the least of train"),
        (8, "task.outputs must be above the largest label of train, 8"),
    ],
)
def test_a_label_that_is_no_class_is_refused(label, message):
    config = compose(Experiment, ["task=recall", "attn=mean", "budget=smoke"])
    data = config.task_data()
    data.setup()
    check_data(config, data)
    data.splits["train"].labels[3] = label
    with pytest.raises(ValueError, match=message):
        check_data(config, data)
