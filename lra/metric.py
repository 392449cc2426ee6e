"""Scores of a whole split, in percent: functions of all outputs and labels at once, never means of batch means."""

from torch import Tensor


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """outputs (n, classes), labels (n,) -> percentage of rows whose largest output is the label's."""
    return 100 * (outputs.argmax(-1) == labels).sum().item() / len(labels)


def within_tolerance(outputs: Tensor, labels: Tensor) -> float:
    """outputs (n, 1), labels (n,) -> percentage of rows whose absolute error is below 0.04 (PSF-Attn, Adding)."""
    return 100 * ((outputs[:, 0].double() - labels.double()).abs() < 0.04).sum().item() / len(labels)


def roc_auc(outputs: Tensor, labels: Tensor) -> float:
    """outputs (n, 2), labels (n,) of 0 and 1 -> percentage of pairs of a 1 and a 0 that are ranked right.

    A row's score is its second output less its first; equal scores count as half. Raises ValueError where one of the
    two classes is missing.
    """
    scores = (outputs[:, 1].double() - outputs[:, 0].double()).unique(return_inverse=True)[1]  # ranks from 0
    ones, zeros = (scores[labels == label].bincount(minlength=len(scores)) for label in (1, 0))
    pairs = ones.sum().item() * zeros.sum().item()
    if not pairs:
        raise ValueError("ROC-AUC needs examples of both classes in every split that is scored")
    twice = (ones * (2 * zeros.cumsum(0) - zeros)).sum().item()  # integers, so ties and rounding cannot disturb it
    return 100 * twice / (2 * pairs)
