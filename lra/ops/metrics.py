"""Scores of a whole split in percent: functions of all outputs and labels at once, not means over batches."""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Num
from torch import Tensor

Metric = Literal["accuracy", "within_tolerance", "balanced_accuracy", "roc_auc"]
# Metrics that are means over examples.
MeanMetric = Literal["accuracy", "within_tolerance"]
# The absolute error of a correct answer is smaller (PSF-Attn, Adding).
TOLERANCE = 0.04


def metric_function(name: Metric) -> Callable[[Tensor, Tensor], float]:
    """Return the function of this module that computes a metric."""
    functions = {
        "accuracy": accuracy,
        "within_tolerance": within_tolerance,
        "balanced_accuracy": balanced_accuracy,
        "roc_auc": roc_auc,
    }
    return functions[name]


def is_right(outputs: Num[Tensor, "n classes"], labels: Num[Tensor, "n"]) -> Bool[Tensor, "n"]:
    """Return whether the outputs of each example are finite and the largest belongs to its label."""
    is_finite = outputs.isfinite().all(-1)
    return (outputs.argmax(-1) == labels) & is_finite


def is_within_tolerance(outputs: Num[Tensor, "n 1"], labels: Num[Tensor, "n"]) -> Bool[Tensor, "n"]:
    """Return whether the absolute error of each example is below 0.04."""
    error = outputs[:, 0].double() - labels.double()
    return error.abs() < TOLERANCE


def accuracy(outputs: Num[Tensor, "n classes"], labels: Num[Tensor, "n"]) -> float:
    """Compute the percentage of examples whose largest output belongs to the label.

    Examples with an output that is not finite count as wrong.
    """
    num_right = is_right(outputs, labels).sum().item()
    return 100 * num_right / len(labels)


def within_tolerance(outputs: Num[Tensor, "n 1"], labels: Num[Tensor, "n"]) -> float:
    """Compute the percentage of examples with an absolute error below 0.04 (PSF-Attn, Adding)."""
    num_right = is_within_tolerance(outputs, labels).sum().item()
    return 100 * num_right / len(labels)


def balanced_accuracy(outputs: Num[Tensor, "n 2"], labels: Num[Tensor, "n"]) -> float:
    """Compute the mean of the accuracies on both classes.

    It equals the ROC-AUC of predicted classes instead of scores, which PSF-Attn's code computes for Genome.

    Args:
        outputs: scores of the classes 0 and 1.
        labels: 0 or 1.

    Raises:
        ValueError: one of the two classes is missing.
    """
    class_accuracies = []
    for label in (0, 1):
        class_outputs = outputs[labels == label]
        num_examples = len(class_outputs)
        if not num_examples:
            raise ValueError("balanced accuracy needs examples of both classes in every split that is scored")
        class_labels = torch.full((num_examples,), label, device=outputs.device)
        class_accuracy = accuracy(class_outputs, class_labels)
        class_accuracies.append(class_accuracy)
    return sum(class_accuracies) / 2


def roc_auc(outputs: Num[Tensor, "n 2"], labels: Num[Tensor, "n"]) -> float:
    """Compute the percentage of pairs of a positive and a negative example that are ranked correctly.

    The score of an example is its second output minus its first, and NaN ranks lowest. Equal scores count as half.

    Args:
        outputs: scores of the classes 0 and 1.
        labels: 0 or 1.

    Raises:
        ValueError: one of the two classes is missing.
    """
    scores = outputs[:, 1].double() - outputs[:, 0].double()
    scores = scores.nan_to_num(nan=float("-inf"))
    # Equal scores share a rank.
    _, ranks = scores.unique(return_inverse=True)

    # Examples of each class at each rank; there are at most as many ranks as examples.
    num_examples = len(ranks)
    positive_ranks = ranks[labels == 1]
    negative_ranks = ranks[labels == 0]
    positives = positive_ranks.bincount(minlength=num_examples)
    negatives = negative_ranks.bincount(minlength=num_examples)
    num_pairs = positives.sum().item() * negatives.sum().item()
    if not num_pairs:
        raise ValueError("ROC-AUC needs examples of both classes in every split that is scored")

    # Twice the number of correct pairs, in integers, so that the result is exact with ties too.
    negatives_below_twice = 2 * negatives.cumsum(0) - negatives
    pairs_twice = positives * negatives_below_twice
    twice_correct = pairs_twice.sum().item()
    return 100 * twice_correct / (2 * num_pairs)
