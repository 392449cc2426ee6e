"""Baselines that need no mixing of tokens: a bag of tokens, and the first tokens alone.

The bag-of-tokens baseline classifies a sequence by how often each token occurs in it, whatever the positions. ``lra
data baselines`` and boards fit it once for each data set and way of reading it; its scores are cached below the root of
the data. The first-tokens baseline is a table of the most frequent answers.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..io import atomic
from .datamodule import TaskData
from .progress import DELAY, reporter
from .source import Source

# Version of the classifier and its training, a part of the checksum that names the cache file.
VERSION = 1
# Maximum number of training examples that are fitted, and number of examples whose tokens are counted at a time.
MAX_FITTED = 20_000
CHUNK = 256
# Training: width of the hidden layer, batch size, epochs per learning rate.
HIDDEN = 128
BATCH = 256
EPOCHS = 30
# Learning rates, chosen by the validation score.
RATES = (1e-3, 1e-2)
SPLITS = ("train", "val", "test")
# Longest beginning of the first-tokens baseline.
MAX_FIRST = 4


def path(data: TaskData, metric: str) -> Path:
    """Return the cache file of a data set as a task reads it."""
    # Everything that the score depends on.
    options = {"limit": data.limit, "masked_id": data.masked_id, "metric": metric, "version": VERSION}
    # Version 0.2.0 fitted the first examples of files, too. This key gives the cache file another name, so that the
    # scores of that version are not read.
    if not _is_shuffled(data.source):
        options["fitted"] = "drawn"
    identity = options | {"source": data.source.provenance}
    text = json.dumps(identity, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    name = f"{data.source.name}-{digest[:8]}.json"
    return Path(data.root) / "bags" / name


def read(file: Path) -> float | None:
    """Read the test score in percent from a file of ``write``; None if it is missing or damaged."""
    try:
        return json.loads(atomic.content(file))["test"]
    except (ValueError, KeyError, TypeError):
        return None


def write(file: Path, scores: dict[str, float]) -> None:
    """Write the scores of ``fit``. Several processes that do so at once write the same."""
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
    """Train an MLP on the counts of ``features``; return the scores of the epoch with the best validation score.

    The result is deterministic, and torch's global CPU generator is left as it was.

    Args:
        data: set up; sequences of token ids.
        metric: metric of outputs and labels, in percent.
        vocab: number of token ids.
        outputs: number of outputs of the task.
        loss: loss of outputs (B, outputs) and labels (B,).

    Returns:
        The scores ``val`` and ``test`` in percent.
    """
    with reporter(f"{data.source.name} bag of tokens", DELAY) as progress:
        split_features = {}
        labels = {}
        for number, split in enumerate(SPLITS, start=1):
            split_features[split] = features(data, split, vocab)  # (n,features)
            labels[split] = data.splits[split].labels[fitted_examples(data, split)]
            progress("counts of splits", number, len(SPLITS))

        # Standardise each feature; drop those that are the same in every training example.
        std, mean = torch.std_mean(split_features["train"], 0, correction=0)
        varies = std > 0
        inputs = {}
        for split, part in split_features.items():
            centred = part[:, varies] - mean[varies]
            inputs[split] = centred / std[varies]

        # The same initial weights and batches for every learning rate.
        best = {"val": -1.0, "test": -1.0}
        with torch.random.fork_rng(devices=[]):
            for run, rate in enumerate(RATES):
                torch.manual_seed(0)
                num_features = inputs["train"].shape[1]
                hidden = nn.Linear(num_features, HIDDEN)
                head = nn.Linear(HIDDEN, outputs)
                model = nn.Sequential(hidden, nn.GELU(), head)
                optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
                for epoch in range(1, EPOCHS + 1):
                    _fit_epoch(model, optimiser, inputs["train"], labels["train"], loss)
                    num_epochs = run * EPOCHS + epoch
                    progress("epochs", num_epochs, len(RATES) * EPOCHS)

                    # The best epoch of all learning rates on the validation set.
                    with torch.no_grad():
                        score = metric(model(inputs["val"]), labels["val"])
                        if score > best["val"]:
                            out = model(inputs["test"])  # (n,outputs)
                            best = {"val": score, "test": metric(out, labels["test"])}
    return best


def _fit_epoch(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    inputs: Tensor,
    labels: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Train for one epoch in a random order."""
    order = torch.randperm(len(inputs))
    for index in order.split(BATCH):
        optimiser.zero_grad()
        out = model(inputs[index])  # (B,outputs)
        value = loss(out, labels[index])
        value.backward()
        optimiser.step()


def fitted_examples(data: TaskData, split: str) -> Tensor:
    """Return the indices of the examples that are counted: all, or ``MAX_FITTED`` of a larger training set."""
    num_examples = len(data.splits[split])
    if split != "train" or num_examples <= MAX_FITTED:
        return torch.arange(num_examples)
    if _is_shuffled(data.source):
        return torch.arange(MAX_FITTED)
    order = np.random.RandomState(0).permutation(num_examples)
    return torch.from_numpy(np.sort(order[:MAX_FITTED]))


def _is_shuffled(source: Source) -> bool:
    """Whether the examples are in random order: generated ones are; files may be sorted by label, as IMDb's are."""
    # With data.release, a generated task is read from its official files.
    return source.generated and "release" not in source.provenance


def features(data: TaskData, split: str, vocab: int) -> Tensor:
    """Count the real tokens of those examples of a split that ``fitted_examples`` returns.

    Args:
        data: set up; sequences of token ids.
        split: name of the split.
        vocab: number of token ids.

    Returns:
        log(1 + count) of each id (n, vocab); for pairs of texts [a, b, a b, a - b] (n, 4 vocab), as ``Head`` compares
        them.
    """
    parts = []
    for index in fitted_examples(data, split).split(CHUNK):
        inputs, mask, *_ = data.gather(split, index.numpy())  # (B,T,L)
        # One range of ids per sequence, so that a single bincount counts all of them.
        num_sequences = inputs[..., 0].numel()
        shape = inputs.shape[:2]
        sequences = torch.arange(num_sequences).view(*shape, 1)  # (B,T,1)
        ids = sequences * vocab + inputs
        real_ids = ids.flatten() if mask is None else ids[mask]
        counts = real_ids.bincount(minlength=num_sequences * vocab)
        counts = counts.view(*shape, vocab)  # (B,T,vocab)
        logs = counts.float().log1p()
        # A pair of texts is compared.
        texts = logs.unbind(1)
        parts.append(texts[0] if len(texts) == 1 else _compare(*texts))
    return torch.cat(parts)


def _compare(a: Tensor, b: Tensor) -> Tensor:
    """Combine the features (B, vocab) of both texts of a pair into (B, 4 vocab)."""
    product = a * b
    difference = a - b
    return torch.cat([a, b, product, difference], 1)


class FirstTokens(NamedTuple):
    """Scores of the first-tokens baseline.

    Args:
        tests: test scores in percent for 1, 2, ... tokens.
        num_tokens: number of tokens with the best validation score.
    """

    tests: list[float]
    num_tokens: int

    @property
    def test(self) -> float:
        """Test score of the best number of tokens, in percent."""
        return self.tests[self.num_tokens - 1]


def first_tokens(data: TaskData, metric: Callable[[Tensor, Tensor], float]) -> FirstTokens:
    """Score the most frequent training answer among the examples that begin with the same 1 to ``MAX_FIRST`` tokens.

    Args:
        data: set up; sequences of token ids, labels of classes.
        metric: metric of outputs and labels, in percent.
    """
    labels = {split: data.splits[split].labels.cpu() for split in SPLITS}
    num_classes = max(2, *(int(part.max()) + 1 for part in labels.values()))
    tables = answer_tables(data)
    scores = {}
    for split in ("val", "test"):
        outputs = [F.one_hot(answers, num_classes) for answers in table_answers(tables, data, split)]
        scores[split] = [metric(out, labels[split]) for out in outputs]
    best = scores["val"].index(max(scores["val"]))
    return FirstTokens(scores["test"], best + 1)


def answer_tables(data: TaskData) -> list[dict[tuple, int]]:
    """Find the most frequent training label for each beginning of 0, 1, ... ``MAX_FIRST`` tokens."""
    labels = data.splits["train"].labels.cpu()
    most_frequent = int(labels.bincount().argmax())
    tables = [{(): most_frequent}]
    for num_tokens in range(1, MAX_FIRST + 1):
        # How often each label follows each beginning.
        counts: dict[tuple, Counter] = defaultdict(Counter)
        for key, label in zip(_keys(data, "train", num_tokens), labels.tolist(), strict=True):
            counts[key][label] += 1
        table = {}
        for key, counter in counts.items():
            label, _ = counter.most_common(1)[0]
            table[key] = label
        tables.append(table)
    return tables


def table_answers(tables: list[dict[tuple, int]], data: TaskData, split: str) -> list[Tensor]:
    """Answer every example of a split by its first 1, 2, ... tokens.

    A beginning that no training example has gets the answer of the next shorter one.

    Args:
        tables: from ``answer_tables``.
        data: the examples; not necessarily the data of the tables.
        split: name of the split.

    Returns:
        Labels (n,) for each number of tokens.
    """
    answers = [tables[0][()]] * len(data.splits[split])
    all_answers = []
    for num_tokens, table in enumerate(tables[1:], start=1):
        keys = _keys(data, split, num_tokens)
        answers = [table.get(key, answer) for key, answer in zip(keys, answers, strict=True)]
        all_answers.append(torch.tensor(answers))
    return all_answers


def beginnings(data: TaskData, split: str, num_tokens: int) -> Tensor:
    """Return the first tokens (n, num_tokens) of every example of a split; (n, 2 num_tokens) for pairs of texts."""
    examples = data.splits[split]
    tokens, _ = examples.gather(torch.arange(len(examples)), num_tokens)  # (n,T,num_tokens)
    return tokens.flatten(1)


def _keys(data: TaskData, split: str, num_tokens: int) -> list[tuple]:
    return [tuple(row) for row in beginnings(data, split, num_tokens).tolist()]
