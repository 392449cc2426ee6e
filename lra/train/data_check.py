"""Data that a model cannot be trained on, refused before anything is written."""

import torch

from ..config.experiment import Experiment
from ..data.datamodule import TaskData


def check(experiment: Experiment, data: TaskData) -> None:
    """Check that the model and the loss of a task are made for its data.

    Args:
        experiment: of the run.
        data: set up.

    Raises:
        ValueError: labels or tokens do not fit the options of the task.
    """
    task, kind = experiment.task, experiment.task.loss
    real_rows = task.features is not None
    for name, split in data.splits.items():
        real = split.labels.is_floating_point()
        if real != (kind == "mse"):
            wanted, labels = ("mse", "real numbers") if real else ("cross_entropy", "classes")
            raise ValueError(f"task.loss must be {wanted} for labels that are {labels}, as those of {name}, not {kind}")
        if not real and int(split.labels.max()) >= task.outputs:
            raise ValueError(f"task.outputs must be above the largest label of {name}, {int(split.labels.max())}")
        if not real and int(split.labels.min()) < 0:
            raise ValueError(f"labels must be 0 or more, not {int(split.labels.min())}, the least of {name}")
        tokens = split.tokens if hasattr(split, "tokens") else split.gather(torch.arange(min(64, len(split))), 64)[0]
        if tokens.is_floating_point() != real_rows or real_rows == (task.vocab is not None):
            raise ValueError(f"task={task.name} needs {'features' if tokens.is_floating_point() else 'vocab'} alone")
        if real_rows and tokens.shape[-1] != task.features:
            raise ValueError(f"task.features must be {tokens.shape[-1]}, not {task.features}")
        own = experiment.model.pool == "cls"  # the last id is that of the class token
        if task.vocab is not None and (last := int(tokens.max()) + task.shift) >= task.vocab - own:
            above = f"{last + own}, the class token's" if own else f"{last} with task.shift={task.shift}"
            raise ValueError(f"task.vocab must be above the largest id of {name}, {above}")
