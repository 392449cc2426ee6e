"""Votes of groups for values and a question about one group: a count over the tokens that a query selects."""

from dataclasses import dataclass

import numpy as np

from lra.compiled import compiled

from .counter_rng import below
from .synthetic import Synthetic, different, settings, state_of, word

_ASKED, _FIRST = 1, 2  # words of an example: the question, then groups, their winners, places, and votes against them


@compiled
def _fill(key, index, length, kept, tokens, present, groups, values, votes, winning, gap):
    drawn, order, places = np.empty(present, np.int64), np.empty(groups, np.int64), np.empty((2, length), np.int64)
    number = present * votes
    for row, example in enumerate(index):
        state = state_of(key, example)
        different(state, _FIRST, drawn, order)
        different(state, _FIRST + 2 * present, places[0, :number], places[1, : length - 1 - gap])
        for vote in range(number):
            group = vote // votes
            value = below(word(state, _FIRST + present + group), values)
            if vote % votes >= winning:  # for any value but the winner
                other = below(word(state, _FIRST + 2 * present + number + vote), values - 1)
                value = (value + 1 + other) % values
            if places[0, vote] < kept:
                tokens[row, places[0, vote]] = 1 + drawn[group] * (values + 1) + value
        if length <= kept:
            tokens[row, length - 1] = 1 + drawn[below(word(state, _ASKED), present)] * (values + 1) + values


@compiled
def _answers(key, n, present, values):
    answers = np.empty(n, np.int64)
    for example in range(n):
        state = state_of(key, example)
        asked = below(word(state, _ASKED), present)
        answers[example] = below(word(state, _FIRST + present + asked), values)
    return answers


@dataclass(kw_only=True, eq=False)
class Majority(Synthetic):
    """Votes of some groups for values among filler; the last token asks for a group, the label is the value it chose.

    Example: b=2 . a=1 b=0 . a=3 b=2 a=1 . ?a is class 1, written with letters for groups, digits for values and a point
    for filler. A vote is one token, as is the question: ids are 0 for filler, 1 + g (values + 1) + v for a vote of
    group g for v, and the id behind its last vote for the question. Votes are at any places but the last and the
    ``gap`` before it, in any order.

    Args:
        present: number of groups of a row, out of ``groups``; each is asked for with the same probability.
        groups: number of groups.
        values: number of values, the classes.
        votes: number of votes of each group.
        winning: number of these that are for one value, more than half; each other vote is for any other value.
        gap: number of places before the question that hold filler.
    """

    name = "majority"
    version = "1.0.0"
    origin = "generated; a majority of the tokens that a query selects"
    dtype = np.int16
    lengths = tuple(2**k for k in range(6, 11))

    present: int = 8
    groups: int = 64
    values: int = 16
    votes: int = 5
    winning: int = 3
    gap: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        groups, values, number, places = self.groups, self.values, self.present * self.votes, self.length - 1 - self.gap
        self.need(
            (groups >= 1 and values >= 2, "at least one group and two values"),
            (groups * (values + 1) < 2**15, "source.groups times source.values + 1 to be below 32,768"),
            (
                0 < self.winning <= self.votes < 2 * self.winning,
                "source.winning above half of source.votes, at most all",
            ),
            (1 <= self.present <= groups, f"source.present from 1 to source.groups={groups}"),
            (0 <= self.gap < self.length, f"source.gap from 0 to {self.length - 1}"),
            (number <= places, f"at most {places} votes, not {number}"),
        )
        self.floor = 100 / self.present  # of the choice of any group of the row
        self.alphabet = settings(groups, values, "g")

    def fill(self, key: np.uint64, index: np.ndarray, length: int, kept: int, tokens: np.ndarray) -> None:
        sizes = (self.present, self.groups, self.values, self.votes, self.winning, self.gap)
        _fill(key, index, length, kept, tokens, *sizes)

    def answers(self, key: np.uint64, n: int, length: int) -> np.ndarray:
        return _answers(key, n, self.present, self.values)
