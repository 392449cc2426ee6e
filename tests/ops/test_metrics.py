"""Metrics against their definitions; ROC-AUC is counted over all pairs."""

import pytest
import torch
from torchmetrics.functional.classification import binary_auroc

from lra.ops import metrics


def pairwise_auc(scores, labels):
    """ROC-AUC in percent: the share of (positive, negative) pairs ranked correctly; a tie counts half."""
    ones = [s for s, label in zip(scores, labels, strict=True) if label == 1]
    zeros = [s for s, label in zip(scores, labels, strict=True) if label == 0]
    return 100 * sum((a > b) + (a == b) / 2 for a in ones for b in zeros) / (len(ones) * len(zeros))


def draw_labels(n, g):
    """Draw labels with both classes, about 27 % of them 1."""
    return torch.cat([torch.tensor([0, 1]), (torch.rand(n - 2, generator=g) < 0.27).long()])


@pytest.mark.parametrize("levels", [1, 2, 5, 10**6])
@pytest.mark.parametrize("n", [2, 17, 300])
def test_roc_auc_matches_pairwise_definition(n, levels):
    g = torch.Generator().manual_seed(n * levels)
    labels = draw_labels(n, g)
    scores = torch.randint(levels, (n,), generator=g).double() / 8 + labels / 8
    outputs = torch.stack([torch.ones(n), 1 + scores], 1)
    expected = pairwise_auc(scores.tolist(), labels.tolist())
    assert metrics.roc_auc(outputs, labels) == pytest.approx(expected, abs=1e-9)
    assert metrics.roc_auc(outputs.flip(1), labels) == pytest.approx(100 - expected, abs=1e-9)
    assert metrics.roc_auc(outputs, 1 - labels) == pytest.approx(100 - expected, abs=1e-9)


@pytest.mark.parametrize("metric", [metrics.roc_auc, metrics.balanced_accuracy])
def test_missing_class_raises_value_error(metric):
    with pytest.raises(ValueError, match="both classes"):
        metric(torch.zeros(5, 2), torch.ones(5, dtype=torch.int64))


@pytest.mark.parametrize("n", [2, 17, 300])
def test_balanced_accuracy_equals_roc_auc_of_predicted_classes(n):
    """The PSF-Attn authors pass predicted classes instead of scores to a library's ROC-AUC, in float32."""
    g = torch.Generator().manual_seed(n)
    labels = draw_labels(n, g)
    outputs = torch.randn(n, 2, generator=g) + torch.nn.functional.one_hot(labels)
    expected = 100 * binary_auroc(outputs.argmax(1).float(), labels).item()
    assert metrics.balanced_accuracy(outputs, labels) == pytest.approx(expected, abs=1e-4)


def test_non_finite_outputs_count_as_wrong():
    outputs, labels = torch.tensor([[float("nan")] * 2, [0.0, float("nan")], [1.0, 0.0]]), torch.zeros(3)
    assert metrics.accuracy(outputs, labels) == pytest.approx(100 / 3)
    assert metrics.accuracy(torch.full((4, 3), float("nan")), torch.zeros(4)) == 0
    assert metrics.roc_auc(torch.full((4, 2), float("nan")), torch.tensor([0, 1, 0, 1])) == 50


def test_within_tolerance_bound_is_strict():
    labels = torch.tensor([0.5, 0.5, 0.5, 0.5, 0.25])
    outputs = torch.tensor([0.5, 0.539, 0.461, 0.541, 0.5])[:, None]
    assert metrics.within_tolerance(outputs, labels) == 60
    bound = torch.tensor([[0.04]], dtype=torch.float64)
    assert metrics.within_tolerance(bound, torch.zeros(1)) == 0
    assert metrics.within_tolerance(bound.nextafter(torch.zeros(1, dtype=torch.float64)), torch.zeros(1)) == 100
    assert metrics.within_tolerance(torch.tensor([[float("nan")]]), torch.zeros(1)) == 0
