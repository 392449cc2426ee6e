"""Data sets with rows that are made when they are read.

Shapes: B batch, L length, F features. Example i of a split is a function of (seed, split, i): word k of its random
stream is mix(state + k STEP). In rows with two marked positions words 1 and 2 choose these and word 3 + p belongs to
position p. Hence a label needs four words instead of the row, and two lengths of one seed share their words.
"""

from abc import abstractmethod
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lra.compiled import compiled
from lra.data.source import Source

from .counter_rng import STEP, below, mix

LENGTHS = tuple(2**k for k in range(7, 15))  # 128 .. 16384, those of the PSF-Attn paper


@compiled
def split_key(seed, split):
    return mix(mix(np.uint64(seed) + STEP) + np.uint64(split) * STEP)


@compiled
def state_of(key, example):
    return mix(key + np.uint64(example) * STEP)


@compiled
def word(state, number):
    return mix(state + np.uint64(number) * STEP)


@compiled
def word_at(state, position):
    return word(state, position + 3)


@compiled
def different(state, first, drawn, order):
    """Draw different numbers below len(order) into drawn (K,), by the words from ``first`` on."""
    for i in range(len(order)):
        order[i] = i
    for i in range(len(drawn)):
        j = i + below(word(state, first + i), len(order) - i)
        drawn[i], order[j] = order[j], order[i]


def settings(names: int, values: int, name: str) -> tuple[str, ...]:
    """The tokens of a task in which names are set to values, by their ids: filler, a=0, a=1, .., ?a, b=0, ..

    Args:
        names, values: numbers of names and of values.
        name: what a number begins with if there are more names than letters.
    """
    words = [chr(ord("a") + k) if names <= 26 else f"{name}{k}:" for k in range(names)]
    return (".", *(token for word in words for token in (*(f"{word}={v}" for v in range(values)), f"?{word}")))


@compiled
def two_positions(state, length):
    """Draw two distinct positions in [0, length), the smaller one first; every pair is equally likely."""
    one, other = below(mix(state + STEP), length), below(mix(state + STEP + STEP), length - 1)
    other += other >= one
    return min(one, other), max(one, other)


@dataclass(frozen=True, eq=False)
class Drawn:
    """One split of a Synthetic source with the interface of lra.data.store.Split; labels (n,), one tower."""

    source: "Synthetic"
    key: np.uint64
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> Tensor:
        """The lengths of rows (n, 1) int64."""
        return torch.full((len(self), 1), self.source.length)

    def to(self, device: torch.device | str) -> "Drawn":
        """Move labels and batches to `device`; rows are still made on the CPU."""
        return replace(self, labels=self.labels.to(device))

    def gather(self, index: Tensor, width: int, limit: int | None = None) -> tuple[Tensor, Tensor]:
        """Gather examples index (B,) as tokens (B, 1, width[, F]) and mask (B, 1, width), as Split.gather does."""
        kept = min(self.source.length, width, width if limit is None else limit)
        tokens = np.zeros((len(index), width, *self.source.features), self.source.dtype)
        self.source.fill(self.key, index.cpu().numpy(), self.source.length, kept, tokens)
        device = self.labels.device
        mask = (torch.arange(width, device=device) < kept).expand(len(index), 1, width)
        return torch.from_numpy(tokens)[:, None].to(device), mask


@dataclass(kw_only=True, eq=False)
class Synthetic(Source):
    """A source that stores nothing, since rows are made as fast as read; `dtype` and `features` (F,) of a token.

    Args:
        length: L.
        train, val, test: numbers of examples.
        seed: seed of the examples.

    Raises:
        ValueError: there are no such rows.
    """

    generated = True
    stored = False
    licence = "generated here, MIT"
    dtype: ClassVar[type]
    features: ClassVar[tuple[int, ...]] = ()
    lengths: ClassVar[tuple[int, ...]] = LENGTHS

    length: int = 128
    train: int = 200_000
    val: int = 5_000
    test: int = 5_000
    seed: int = 0

    def __post_init__(self) -> None:
        self.need(
            (self.length in self.lengths, f"a length among {', '.join(map(str, self.lengths))}, not {self.length}"),
            (min(self.sizes.values()) >= 1, "at least one example in train, val and test"),
            (0 <= self.seed < 2**63, "seed in 0..2**63 - 1"),
        )

    @property
    def sizes(self) -> dict[str, int]:
        return {"train": self.train, "val": self.val, "test": self.test}

    def need(self, *rules: tuple[bool, str]) -> None:
        """Raise ValueError for the first of the rules, each with what it needs, that does not hold."""
        for holds, what in rules:
            if not holds:
                raise ValueError(f"{self.name} needs {what}")

    @abstractmethod
    def fill(self, key: np.uint64, index: np.ndarray, length: int, kept: int, tokens: np.ndarray) -> None:
        """Write the first `kept` tokens of the examples index (B,) into tokens (B, width[, F]), which are zero."""

    @abstractmethod
    def answers(self, key: np.uint64, n: int, length: int) -> np.ndarray:
        """Compute the labels (n,) int64 or float32 of the first n examples."""

    @property
    def arguments(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def load(self, root: Path | str) -> dict[str, Drawn]:
        """Make the splits; nothing is read from `root`."""
        splits = {}
        for number, (name, n) in enumerate(self.sizes.items()):
            key = np.uint64(split_key(self.seed, number))  # numba returns a Python int
            splits[name] = Drawn(self, key, torch.from_numpy(self.answers(key, n, self.length)))
        return splits

    open = load
