"""Scores of a whole split in percent: functions of all outputs and labels at once, not means over batches."""

from typing import Literal

from torch import Tensor

Metric = Literal["accuracy", "within_tolerance", "balanced_accuracy", "roc_auc"]


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """The percentage of rows whose largest output is the label's: outputs (n, classes), labels (n,).

    Rows with an output that is not finite are wrong.
    """
    right = (outputs.argmax(-1) == labels) & outputs.isfinite().all(-1)
    return 100 * right.sum().item() / len(labels)


def within_tolerance(outputs: Tensor, labels: Tensor) -> float:
    """The percentage of rows with an absolute error below 0.04 (PSF-Attn, Adding): outputs (n, 1), labels (n,)."""
    return 100 * ((outputs[:, 0].double() - labels.double()).abs() < 0.04).sum().item() / len(labels)


def balanced_accuracy(outputs: Tensor, labels: Tensor) -> float:
    """The mean of the accuracies on each class: outputs (n, 2), labels (n,) of 0 and 1.

    It is the ROC-AUC of predicted classes in place of scores, which PSF-Attn's code computes for Genome.

    Raises:
        ValueError: one of the two classes is missing.
    """
    sides = [outputs[labels == label] for label in (0, 1)]
    if not all(len(side) for side in sides):
        raise ValueError("balanced accuracy needs examples of both classes in every split that is scored")
    return sum(accuracy(side, side.new_full((len(side),), label)) for label, side in enumerate(sides)) / 2


def roc_auc(outputs: Tensor, labels: Tensor) -> float:
    """The percentage of pairs of a 1 and a 0 that are ranked correctly: outputs (n, 2), labels (n,) of 0 and 1.

    A row's score is its second output less its first, NaN the lowest; equal scores count as half.

    Raises:
        ValueError: one of the two classes is missing.
    """
    scores = (outputs[:, 1].double() - outputs[:, 0].double()).nan_to_num(nan=float("-inf"))
    scores = scores.unique(return_inverse=True)[1]  # ranks from 0
    ones, zeros = (scores[labels == label].bincount(minlength=len(scores)) for label in (1, 0))
    pairs = ones.sum().item() * zeros.sum().item()
    if not pairs:
        raise ValueError("ROC-AUC needs examples of both classes in every split that is scored")
    twice = (ones * (2 * zeros.cumsum(0) - zeros)).sum().item()  # integers, hence exact, also with ties
    return 100 * twice / (2 * pairs)
