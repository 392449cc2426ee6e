"""Data sets whose examples are generated while they are read.

Shapes: B batch, L length, F features. Example i of a split depends on (seed, split, i) only: word k of its random
stream is mix(state + k STEP). In tasks with two marked positions, words 1 and 2 choose the positions and word 3 + p
belongs to position p. A label then needs four words instead of the whole sequence, and two lengths of one seed share
their words.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lra.compiled import compiled
from lra.data.source import Source

from .counter_rng import STEP, below, mix

LENGTHS = tuple(2**k for k in range(7, 15))  # 128 .. 16384, as in the PSF-Attn paper


# The hierarchy of the random numbers: seed -> key of a split -> state of an example -> words.
@compiled
def split_key(seed, split):
    """Key of a split, by its number."""
    seed_key = mix(np.uint64(seed) + STEP)
    return mix(seed_key + np.uint64(split) * STEP)


@compiled
def state_of(key, example):
    """State of an example of a split."""
    return mix(key + np.uint64(example) * STEP)


@compiled
def word(state, number):
    """Random word of an example, by its number."""
    return mix(state + np.uint64(number) * STEP)


# The word of a position, in tasks with two marked positions.
@compiled
def word_at(state, position):
    return word(state, position + 3)


@compiled
def draw_below(state, number, bound):
    """Draw a number in [0, bound) by a word of the example."""
    return below(word(state, number), bound)


@compiled
def pair_id(first, second, num_seconds):
    """The id of a token that is a pair; id 0 is filler."""
    return 1 + first * num_seconds + second


@compiled
def draw_distinct(state, first, numbers, order):
    """Draw distinct numbers below len(order) into numbers (K,), from the words ``first``, ``first + 1``, ...

    Args:
        state: state of the example.
        first: number of the first word.
        numbers: result (K,).
        order: scratch space, as long as there are numbers to choose from.
    """
    for i in range(len(order)):
        order[i] = i
    # The first K steps of a Fisher-Yates shuffle.
    for i in range(len(numbers)):
        j = i + draw_below(state, first + i, len(order) - i)
        numbers[i] = order[j]
        # Number i of the order was not drawn, so it takes the place of the drawn one.
        order[j] = order[i]


@compiled
def two_positions(state, length):
    """Draw two distinct positions in [0, length), the smaller one first; every pair is equally likely."""
    first = draw_below(state, 1, length)
    # The second position among the others: skip the first one.
    second = draw_below(state, 2, length - 1)
    second += second >= first
    return min(first, second), max(first, second)


def name_keys(count: int, prefix: str) -> list[str]:
    """Name keys by letters, or by a prefix and a number if there are more keys than letters."""
    if count <= 26:
        return [chr(ord("a") + number) for number in range(count)]
    return [f"{prefix}{number}" for number in range(count)]


def assignment_tokens(num_keys: int, num_values: int, prefix: str) -> tuple[str, ...]:
    """Name the tokens of a task that assigns values to keys, by id: filler, a=0, a=1, .., ?a, b=0, ..

    Args:
        num_keys: number of keys.
        num_values: number of values.
        prefix: start of a key's name if there are more keys than letters.
    """
    tokens = ["."]
    for key in name_keys(num_keys, prefix):
        separator = "" if num_keys <= 26 else ":"
        tokens += [f"{key}{separator}={value}" for value in range(num_values)]
        tokens.append(f"?{key}{separator}")
    return tuple(tokens)


@dataclass(frozen=True, eq=False)
class GeneratedSplit:
    """One split of a Synthetic source with the interface of lra.data.split.Split; labels (n,), one text per example."""

    source: "Synthetic"
    key: np.uint64
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> Tensor:
        """Lengths of the sequences (n, 1) int64."""
        return torch.full((len(self), 1), self.source.length)

    def to(self, device: torch.device | str) -> "GeneratedSplit":
        """Move labels and batches to ``device``; sequences are still generated on the CPU."""
        return replace(self, labels=self.labels.to(device))

    def gather(self, index: Tensor, width: int, limit: int | None = None) -> tuple[Tensor, Tensor]:
        """Gather examples index (B,) as tokens (B, 1, width[, F]) and mask (B, 1, width), as Split.gather does."""
        num_tokens = min(self.source.length, width)
        if limit is not None:
            num_tokens = min(num_tokens, limit)
        # Positions beyond the end stay zero.
        tokens: np.ndarray = np.zeros((len(index), width, *self.source.features), self.source.dtype)
        self.source.fill(self.key, index.cpu().numpy(), num_tokens, tokens)
        device = self.labels.device
        is_real = torch.arange(width, device=device) < num_tokens
        mask = is_real.expand(len(index), 1, width)
        batch = torch.from_numpy(tokens)[:, None].to(device)  # (B, 1, width[, F])
        return batch, mask


@dataclass(kw_only=True, eq=False)
class Synthetic(Source):
    """A source that stores nothing, since generating is as fast as reading; ``dtype`` and ``features`` (F,) of a token.

    Args:
        length: L.
        train, val, test: numbers of examples.
        seed: seed of the examples.

    Raises:
        ValueError: an option is out of its range.
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
    sizes: Mapping[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.sizes = {"train": self.train, "val": self.val, "test": self.test}
        lengths = ", ".join(map(str, self.lengths))
        self.require(
            (self.length in self.lengths, f"a length among {lengths}, not {self.length}"),
            (min(self.sizes.values()) >= 1, "at least one example in train, val and test"),
            (0 <= self.seed < 2**63, "seed in 0..2**63 - 1"),
        )

    def require(self, *rules: tuple[bool, str]) -> None:
        """Raise ValueError for the first rule that does not hold; a rule is a condition and what it asks for."""
        for holds, requirement in rules:
            if not holds:
                raise ValueError(f"{self.name} needs {requirement}")

    @abstractmethod
    def fill(self, key: np.uint64, index: np.ndarray, num_tokens: int, tokens: np.ndarray) -> None:
        """Write the first ``num_tokens`` tokens of the examples index (B,) into zeros, tokens (B, width[, F])."""

    @abstractmethod
    def answers(self, key: np.uint64, n: int) -> np.ndarray:
        """Compute the labels (n,) int64 or float32 of the first n examples."""

    @property
    def arguments(self) -> dict[str, Any]:
        return {option.name: getattr(self, option.name) for option in fields(self) if option.init}

    def load(self, root: Path | str) -> dict[str, GeneratedSplit]:
        """Make the splits; nothing is read from ``root``."""
        splits = {}
        for number, (name, n) in enumerate(self.sizes.items()):
            # numba returns a Python int.
            key = np.uint64(split_key(self.seed, number))
            labels = torch.from_numpy(self.answers(key, n))
            splits[name] = GeneratedSplit(self, key, labels)
        return splits
