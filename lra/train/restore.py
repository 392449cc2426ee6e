"""The model of a finished run, as it was trained."""

from pathlib import Path

from omegaconf import DictConfig

from ..data.datamodule import TaskData
from ..model.classifier import Classifier
from ..runs import checkpoint
from . import build


def trained(run: Path, config: DictConfig) -> tuple[Classifier, TaskData]:
    """The model with the weights of best.ckpt, in eval mode on the CPU, and its data.

    Raises ValueError where weights or data are missing, damaged or of another model.
    """
    if reason := build.unavailable(config):
        raise ValueError(reason)
    if not (run / checkpoint.BEST).exists():
        raise ValueError(f"{run} has no best.ckpt: it has not reached its first evaluation, or was copied without it")
    data = build.task_data(config)
    data.setup()
    model = build.classifier(config)
    checkpoint.load_weights(model, run / checkpoint.BEST)
    return model.eval(), data
