"""Votes of groups for values and a question about one group: a count over the tokens that a query selects."""

from dataclasses import dataclass

import numpy as np

from lra.compiled import compiled

from .synthetic import Synthetic, assignment_tokens, draw_below, draw_distinct, pair_id, state_of

# Random words of an example, by number: the question, then groups, winners, positions, votes against the winners.
_ASKED = 1
_FIRST = 2


@compiled
def _fill(key, index, length, num_tokens, tokens, present, groups, values, votes, winning, gap):
    drawn_groups = np.empty(present, np.int64)
    group_order = np.empty(groups, np.int64)
    positions = np.empty(length, np.int64)
    position_order = np.empty(length, np.int64)
    num_votes = present * votes
    num_positions = length - 1 - gap
    # The first words of winners, positions, and votes against the winners.
    first_winner = _FIRST + present
    first_position = first_winner + present
    first_offset = first_position + num_votes
    for number, example in enumerate(index):
        state = state_of(key, example)
        # The groups, and the positions of all votes.
        draw_distinct(state, _FIRST, drawn_groups, group_order)
        draw_distinct(state, first_position, positions[:num_votes], position_order[:num_positions])
        for vote in range(num_votes):
            group = vote // votes
            value = draw_below(state, first_winner + group, values)
            # The votes after the first ``winning`` are for any value but the winner.
            if vote % votes >= winning:
                offset = draw_below(state, first_offset + vote, values - 1)
                value = (value + 1 + offset) % values
            position = positions[vote]
            if position < num_tokens:
                drawn_group = drawn_groups[group]
                tokens[number, position] = pair_id(drawn_group, value, values + 1)
        if length <= num_tokens:
            # The question at the end.
            asked = draw_below(state, _ASKED, present)
            drawn_group = drawn_groups[asked]
            tokens[number, length - 1] = pair_id(drawn_group, values, values + 1)


@compiled
def _answers(key, n, present, values):
    answers = np.empty(n, np.int64)
    for example in range(n):
        state = state_of(key, example)
        # The winner of the group that is asked for.
        group = draw_below(state, _ASKED, present)
        winner_word = _FIRST + present + group
        answers[example] = draw_below(state, winner_word, values)
    return answers


@dataclass(kw_only=True, eq=False)
class Majority(Synthetic):
    """Votes of some groups for values among filler; the last token asks for a group, the label is the value it chose.

    Example: b=2 . a=1 b=0 . a=3 b=2 a=1 . ?a is class 1, written with letters for groups, digits for values and a point
    for filler. A vote is one token, as is the question: ids are 0 for filler, 1 + g (values + 1) + v for a vote of
    group g for v, and the id after its last vote for the question. Votes are at any positions but the last and the
    ``gap`` before it, in any order.

    Args:
        present: number of groups of a sequence, out of ``groups``; each is asked for with the same probability.
        groups: number of groups.
        values: number of values, the classes.
        votes: number of votes of each group.
        winning: votes of a group for its winner, more than half; each other vote is for a random other value.
        gap: number of positions before the question that hold filler.
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
        # Ids are int16.
        largest_id = self.groups * (self.values + 1)
        num_votes = self.present * self.votes
        num_positions = self.length - 1 - self.gap
        has_majority = 0 < self.winning <= self.votes < 2 * self.winning
        self.require(
            (self.groups >= 1 and self.values >= 2, "at least one group and two values"),
            (largest_id < 2**15, "source.groups * (source.values + 1) below 32,768"),
            (has_majority, "source.winning above half of source.votes and at most source.votes"),
            (1 <= self.present <= self.groups, f"source.present from 1 to source.groups={self.groups}"),
            (0 <= self.gap < self.length, f"source.gap from 0 to {self.length - 1}"),
            (num_votes <= num_positions, f"at most {num_positions} votes, not {num_votes}"),
        )
        # Score in percent of a guess: the winner of a random group of the sequence. It is right if that group is the
        # asked one; the chance that another group has the same winner is left out.
        self.analytic_chance = 100 / self.present
        self.alphabet = assignment_tokens(self.groups, self.values, "g")

    def fill(self, key: np.uint64, index: np.ndarray, num_tokens: int, tokens: np.ndarray) -> None:
        sizes = (self.present, self.groups, self.values, self.votes, self.winning, self.gap)
        _fill(key, index, self.length, num_tokens, tokens, *sizes)

    def answers(self, key: np.uint64, n: int) -> np.ndarray:
        return _answers(key, n, self.present, self.values)
