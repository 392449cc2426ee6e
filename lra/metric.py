"""Scores of a whole split, in percent: functions of all outputs and labels at once, never means of batch means."""

from torch import Tensor


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """outputs (n, classes), labels (n,) -> percentage of rows whose largest output is the label's."""
    return 100 * (outputs.argmax(-1) == labels).sum().item() / len(labels)
