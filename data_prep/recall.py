"""Associative recall with one query, after multi-query associative recall (Arora et al. 2023, Zoology)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lra.compiled import compiled

from .counter_rng import below
from .synthetic import Synthetic, different, state_of, word


@compiled
def _fill(key, index, kept, tokens, keys, values, pairs, ends):
    drawn, order = np.empty((2, pairs), np.int64), np.empty(max(keys, values), np.int64)
    for row, example in enumerate(index):
        state = state_of(key, example)
        different(state, 1, drawn[0], order[:keys])
        different(state, 1 + pairs, drawn[1], order[:values])
        for i in range(min(pairs, kept)):
            tokens[row, i] = 1 + keys + drawn[0, i] * values + drawn[1, i]
        asked = below(word(state, 1 + 2 * pairs), pairs)
        place = pairs + np.searchsorted(ends, (word(state, 2 + 2 * pairs) >> np.uint64(11)) * 2.0**-53, "right")
        if place < kept:
            tokens[row, place] = 1 + drawn[0, asked]


@compiled
def _answers(key, n, values, pairs):
    answers, drawn, order = np.empty(n, np.int64), np.empty(pairs, np.int64), np.empty(values, np.int64)
    for example in range(n):
        state = state_of(key, example)
        different(state, 1 + pairs, drawn, order)
        answers[example] = drawn[below(word(state, 1 + 2 * pairs), pairs)]
    return answers


@dataclass(kw_only=True, eq=False)
class Recall(Synthetic):
    """Pairs of a key and a value, filler, and somewhere in it one key again, as a query; the label is its value.

    Example: b=2 d=0 a=3 . . . ? d . . is class 0, written with letters for keys, digits for values and a point for
    filler. A pair is one token, as is a query: ids are 0 for filler, 1 + k for the query of key k and
    1 + keys + k values + v for a pair. The row begins with the pairs, whose keys differ and whose values differ. The
    gap of i - 1 fillers between them and the query has a probability proportional to i^(power - 1): uniform for 1, with
    more short gaps for less.
    """

    name = "recall"
    version = "1.0.0"
    origin = "generated; after Arora et al. 2023 (Zoology), with one query a row and a pair in one token"
    dtype = np.int16
    lengths = tuple(2**k for k in range(6, 11))

    length: int = 64
    pairs: int = 4
    keys: int = 8
    values: int = 8
    power: int | float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs, keys, values, power = self.pairs, self.keys, self.values, self.power
        self.need(
            (keys >= 1 and values >= 2, "at least one key and two values"),
            (keys * (values + 1) < 2**15, "fewer tokens: source.keys times source.values + 1 must be below 32,768"),
            (
                1 <= pairs <= min(keys, values, self.length - 1),
                "pairs from 1 to the keys, the values and the length - 1",
            ),
            (power > 0, f"a power above 0, not {power}"),
        )
        weights = np.arange(1, self.length - pairs + 1, dtype=np.float64) ** (power - 1)
        self.ends: NDArray[np.float64] = np.cumsum(weights) / weights.sum()  # of each gap's share of [0, 1)
        self.ends[-1] = 1
        self.floor = 100 / pairs  # of any value of the row
        names = [chr(ord("a") + k) if keys <= 26 else f"k{k}" for k in range(keys)]
        self.alphabet = (".", *(f"?{key}" for key in names), *(f"{key}={v}" for key in names for v in range(values)))

    def fill(self, key: np.uint64, index: np.ndarray, length: int, kept: int, tokens: np.ndarray) -> None:
        _fill(key, index, kept, tokens, self.keys, self.values, self.pairs, self.ends)

    def answers(self, key: np.uint64, n: int, length: int) -> np.ndarray:
        return _answers(key, n, self.values, self.pairs)
