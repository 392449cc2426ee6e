"""Associative recall with one query, after multi-query associative recall (Arora et al. 2023, Zoology)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lra.compiled import compiled

from .synthetic import Synthetic, draw_below, draw_distinct, name_keys, pair_id, state_of, word


@compiled
def _fill(key, index, num_tokens, tokens, keys, values, pairs, ends):
    drawn_keys = np.empty(pairs, np.int64)
    drawn_values = np.empty(pairs, np.int64)
    order = np.empty(max(keys, values), np.int64)
    for number, example in enumerate(index):
        state = state_of(key, example)
        # Random words 1 .. pairs choose the keys, the next ones the values.
        draw_distinct(state, 1, drawn_keys, order[:keys])
        draw_distinct(state, 1 + pairs, drawn_values, order[:values])
        for i in range(min(pairs, num_tokens)):
            pair = pair_id(drawn_keys[i], drawn_values[i], values)
            tokens[number, i] = keys + pair

        # The query: one of the keys, after a gap drawn by inversion of its distribution.
        query_word = 1 + 2 * pairs
        query = draw_below(state, query_word, pairs)
        bits = word(state, query_word + 1) >> np.uint64(11)
        uniform = bits * 2.0**-53
        position = pairs + np.searchsorted(ends, uniform, "right")
        if position < num_tokens:
            tokens[number, position] = 1 + drawn_keys[query]


@compiled
def _answers(key, n, values, pairs):
    answers = np.empty(n, np.int64)
    drawn_values = np.empty(pairs, np.int64)
    order = np.empty(values, np.int64)
    for example in range(n):
        state = state_of(key, example)
        draw_distinct(state, 1 + pairs, drawn_values, order)
        # The query asks for pair number ``query``.
        query = draw_below(state, 1 + 2 * pairs, pairs)
        answers[example] = drawn_values[query]
    return answers


@dataclass(kw_only=True, eq=False)
class Recall(Synthetic):
    """Pairs of a key and a value, filler, and somewhere in it one key again, as a query; the label is its value.

    Example: b=2 d=0 a=3 . . . ?d . . is class 0, written with letters for keys, digits for values and a point for
    filler. A pair is one token, as is a query: ids are 0 for filler, 1 + k for the query of key k and
    1 + keys + k values + v for a pair. The sequence begins with the pairs, whose keys differ and whose values differ.
    The gap of i - 1 fillers between them and the query has a probability proportional to i^(power - 1): uniform for 1,
    with more short gaps for less.

    Args:
        pairs: number of pairs of a sequence.
        keys: number of keys.
        values: number of values, the classes.
        power: the exponent of i in the probability of a gap, plus 1.
    """

    name = "recall"
    version = "1.0.0"
    origin = "generated; after Arora et al. 2023 (Zoology), with one query per sequence and a pair in one token"
    dtype = np.int16
    lengths = tuple(2**k for k in range(6, 11))

    length: int = 64
    pairs: int = 4
    keys: int = 8
    values: int = 8
    power: int | float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        # Ids are int16.
        largest_id = self.keys * (self.values + 1)
        most_pairs = min(self.keys, self.values, self.length - 1)
        self.require(
            (self.keys >= 1 and self.values >= 2, "at least one key and two values"),
            (largest_id < 2**15, "fewer tokens: source.keys * (source.values + 1) must be below 32,768"),
            (1 <= self.pairs <= most_pairs, "source.pairs from 1 to the smallest of keys, values and length - 1"),
            (self.power > 0, f"a power above 0, not {self.power}"),
        )
        # The probability of each gap, and the end of its interval in [0, 1).
        num_gaps = self.length - self.pairs
        gaps = np.arange(1, num_gaps + 1, dtype=np.float64)
        weights = gaps ** (self.power - 1)
        total = weights.sum()
        self.ends: NDArray[np.float64] = np.cumsum(weights) / total
        self.ends[-1] = 1
        # Score in percent of a guess among the values of the sequence.
        self.analytic_chance = 100 / self.pairs
        # Names of the tokens: filler, queries, then the pairs of each key.
        names = name_keys(self.keys, "k")
        tokens = [".", *(f"?{name}" for name in names)]
        for name in names:
            tokens += [f"{name}={value}" for value in range(self.values)]
        self.alphabet = tuple(tokens)

    def fill(self, key: np.uint64, index: np.ndarray, num_tokens: int, tokens: np.ndarray) -> None:
        _fill(key, index, num_tokens, tokens, self.keys, self.values, self.pairs, self.ends)

    def answers(self, key: np.uint64, n: int) -> np.ndarray:
        return _answers(key, n, self.values, self.pairs)
