"""The best that a bag of tokens reaches: a classifier that sees how often each token occurs, and not where.

It is fitted once per data set by ``python -m data_prep.floors`` and kept in a file below the root of the data.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from ..disk import atomic
from .datamodule import TaskData

VERSION = 1  # of the classifier and its training
ROWS, CHUNK = 20_000, 256  # training rows that are fitted; rows that are counted at a time
HIDDEN, BATCH, EPOCHS = 128, 256, 30
RATES = (1e-3, 1e-2)  # dev chooses


def path(data: TaskData, metric: str) -> Path:
    """The file of a data set as a task reads it."""
    chosen = {"limit": data.limit, "masked_id": data.masked_id, "metric": metric, "version": VERSION}
    text = json.dumps(data.source.provenance | chosen, sort_keys=True)
    return Path(data.root) / "bags" / f"{data.source.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"


def read(file: Path) -> float | None:
    """The test score in a file of ``write``, in percent; None without a file, or for one that is damaged."""
    try:
        score = json.loads(atomic.content(file))["test"]
    except (ValueError, KeyError, TypeError):
        return None
    return score if isinstance(score, float) and 0 <= score <= 100 else None


def write(file: Path, scores: dict[str, float]) -> None:
    """Write the scores of ``fit``. Processes that do so at once write the same."""
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(file, json.dumps(scores) + "\n")


def fit(
    data: TaskData,
    metric: Callable[[Tensor, Tensor], float],
    *,
    vocab: int,
    outputs: int,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> dict[str, float]:
    """Train a layer of ``HIDDEN`` units on the counts, and score its best dev epoch on the test set.

    It draws the same numbers each time, and none of torch's global generator.

    Args:
        data: set up; rows of token ids.
        metric: metric of outputs and labels.
        vocab: number of token ids.
        outputs: number of outputs of the task.
        loss: loss of outputs (B, outputs) and labels (B,).

    Returns:
        The scores ``val`` and ``test`` in percent.
    """
    train, val, test = (features(data, split, vocab) for split in ("train", "val", "test"))
    labels = data.splits["train"].labels[: len(train)]
    std, mean = torch.std_mean(train, 0, correction=0)
    told = std > 0  # without ids that every row has as often
    train, val, test = ((part[:, told] - mean[told]) / std[told] for part in (train, val, test))
    best = {"val": -1.0, "test": -1.0}
    with torch.random.fork_rng(devices=[]):
        for rate in RATES:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(train.shape[1], HIDDEN), nn.GELU(), nn.Linear(HIDDEN, outputs))
            optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
            for _ in range(EPOCHS):
                for index in torch.randperm(len(train)).split(BATCH):
                    optimiser.zero_grad()
                    loss(model(train[index]), labels[index]).backward()
                    optimiser.step()
                with torch.no_grad():
                    score = metric(model(val), data.splits["val"].labels)
                    if score > best["val"]:
                        best = {"val": score, "test": metric(model(test), data.splits["test"].labels)}
    return best


def features(data: TaskData, split: str, vocab: int) -> Tensor:
    """Count the real tokens of the examples of a split, of training of the first ``ROWS``.

    Args:
        data: set up; rows of token ids.
        split: its name.
        vocab: number of token ids.

    Returns:
        log(1 + count) of each id (n, vocab); of two towers [a, b, a b, a - b], as the classifier compares them.
    """
    found, n = [], len(data.splits[split])
    for index in torch.arange(min(n, ROWS) if split == "train" else n).split(CHUNK):
        inputs, mask, *_ = data.gather(split, index.numpy())
        rows = torch.arange(inputs[..., 0].numel()).view(*inputs.shape[:2], 1)
        ids = rows * vocab + inputs
        counts = (ids.flatten() if mask is None else ids[mask]).bincount(minlength=rows.numel() * vocab)
        logs = counts.view(*inputs.shape[:2], vocab).float().log1p()
        found.append(logs[:, 0] if logs.shape[1] == 1 else _compared(*logs.unbind(1)))
    return torch.cat(found)


def _compared(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([a, b, a * b, a - b], 1)
