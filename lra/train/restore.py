"""The model of a finished run, as it was trained."""

from omegaconf import DictConfig

from ..data.datamodule import TaskData
from ..model.classifier import Classifier
from ..runs import checkpoint
from ..runs.open import Run
from . import build


def best(run: Run, config: DictConfig) -> Classifier:
    """The model with the weights of the best dev score, in eval mode on the CPU.

    Args:
        run: with the weights.
        config: of the model, see ``Run.configuration``.

    Raises:
        ValueError: the weights are missing, damaged or of another model.
    """
    model = build.classifier(config)
    checkpoint.load_weights(model, run.weights)
    return model.eval()


def trained(run: Run, config: DictConfig) -> tuple[Classifier, TaskData]:
    """The best model of a run and its data.

    Raises:
        ValueError: the mechanism cannot run here, or weights or data are missing, damaged or of another model.
    """
    if reason := build.unavailable(config):
        raise ValueError(reason)
    if not run.weights.exists():
        reason = "it has not reached its first evaluation, or was copied without it"
        raise ValueError(f"{run.folder} has no {run.weights.name}: {reason}")
    data = build.task_data(config)
    data.setup()
    return best(run, config), data
