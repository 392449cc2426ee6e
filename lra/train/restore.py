"""The model of a finished run, as it was trained."""

from ..config.experiment import Experiment
from ..data.datamodule import TaskData
from ..model.classifier import Classifier
from ..runs import checkpoint
from ..runs.open import Run


def best(run: Run, experiment: Experiment) -> Classifier:
    """The model with the weights of the best dev score, in eval mode on the CPU.

    Args:
        run: with the weights.
        experiment: of the model, see ``Run.configuration``.

    Raises:
        ValueError: the weights are missing, damaged or of another model.
    """
    model = experiment.classifier()
    checkpoint.load_weights(model, run.weights)
    return model.eval()


def trained(run: Run, experiment: Experiment) -> tuple[Classifier, TaskData]:
    """The best model of a run and its data.

    Raises:
        ValueError: the mechanism cannot run here, or weights or data are missing, damaged or of another model.
    """
    if reason := experiment.unavailable:
        raise ValueError(reason)
    if not run.weights.exists():
        reason = "it has not reached its first evaluation, or was copied without it"
        raise ValueError(f"{run.folder} has no {run.weights.name}: {reason}")
    data = experiment.task_data()
    data.setup()
    return best(run, experiment), data
