"""Outcomes of a trained model on single examples."""

import numpy as np
import torch
from torch import Tensor, nn

from .fresh import FreshData

# Largest absolute error that counts as correct, as in lra.ops.metrics.
TOLERANCE = 0.04
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def is_correct(outputs: Tensor, labels: Tensor, metric: str) -> Tensor:
    """Tell which examples count as correct; 100 times the mean is the metric of ``lra.ops.metrics``.

    Args:
        outputs: outputs (n, classes), or (n, 1) for within_tolerance.
        labels: labels (n,).
        metric: accuracy or within_tolerance.

    Returns:
        Booleans (n,).
    """
    if metric == "accuracy":
        return (outputs.argmax(-1) == labels) & outputs.isfinite().all(-1)
    return (outputs[:, 0].double() - labels.double()).abs() < TOLERANCE


@torch.no_grad()
def outcomes(model: nn.Module, fresh: FreshData, *, metric: str, batch: int, precision: str, device: str) -> np.ndarray:
    """Score a model on every fresh example.

    Args:
        model: model in eval mode on the device.
        fresh: the examples.
        metric: accuracy or within_tolerance.
        batch: examples per forward pass.
        precision: fp32, bf16 or fp16; the two latter by autocast, as in training.
        device: cpu or cuda.

    Returns:
        Booleans (n,) in the order of ``fresh.index``.
    """
    # Mechanisms with random selection draw the same numbers for every run.
    torch.manual_seed(0)
    # Sort by length, so that batches have little padding.
    lengths = fresh.data.sequence_lengths["test"].numpy()[fresh.index]
    order = lengths.argsort(kind="stable")
    correct = np.zeros(len(order), bool)
    autocast = torch.autocast(device, DTYPES.get(precision), enabled=precision in DTYPES)
    for first in range(0, len(order), batch):
        positions = order[first : first + batch]
        examples = fresh.data.gather("test", fresh.index[positions])
        moved = [part if part is None else part.to(device) for part in examples]
        inputs, mask, labels, token_positions = moved
        with autocast:
            outputs = model(inputs, mask, token_positions)
        correct[positions] = is_correct(outputs.float(), labels, metric).cpu().numpy()
    return correct
