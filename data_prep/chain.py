"""Links between names and a question about several hops along them: composition of lookups."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lra.compiled import compiled

from .synthetic import Synthetic, draw_below, draw_distinct, name_keys, pair_id, state_of

# Random words of an example, by number: number of links, start and hops of the question, then names and positions.
_SIZE = 1
_START = 2
_HOPS = 3
_FIRST = 4


@compiled
def _draw(state, sizes, max_hops, cycle, order):
    """Draw the names cycle[:n] of the n links; each name links to the next one, the last name to the first.

    ``order`` (names,) is scratch space.

    Returns:
        The number of links, the place in the cycle at which the question starts, and the number of hops.
    """
    num_links = sizes[draw_below(state, _SIZE, len(sizes))]
    draw_distinct(state, _FIRST, cycle[:num_links], order)
    start = draw_below(state, _START, num_links)
    hops = 1 + draw_below(state, _HOPS, max_hops)
    return num_links, start, hops


@compiled
def _fill(key, index, length, num_tokens, tokens, sizes, names, max_hops):
    # The second part of a token is a name in a link, and a number of hops in a question.
    num_seconds = names + max_hops
    largest = sizes.max()
    cycle = np.empty(largest, np.int64)
    order = np.empty(names, np.int64)
    positions = np.empty(length, np.int64)
    position_order = np.empty(length, np.int64)
    for number, example in enumerate(index):
        state = state_of(key, example)
        num_links, start, hops = _draw(state, sizes, max_hops, cycle, order)

        # Links at distinct positions, any but the last.
        first_word = _FIRST + largest
        draw_distinct(state, first_word, positions[:num_links], position_order[: length - 1])
        for i in range(num_links):
            position = positions[i]
            if position < num_tokens:
                name = cycle[i]
                target = cycle[(i + 1) % num_links]
                tokens[number, position] = pair_id(name, target, num_seconds)

        # The question at the end.
        if length <= num_tokens:
            name = cycle[start]
            second = names + hops - 1
            tokens[number, length - 1] = pair_id(name, second, num_seconds)


@compiled
def _answers(key, n, sizes, names, max_hops):
    answers = np.empty(n, np.int64)
    cycle = np.empty(sizes.max(), np.int64)
    order = np.empty(names, np.int64)
    for example in range(n):
        # Follow the cycle from the name of the question.
        state = state_of(key, example)
        num_links, start, hops = _draw(state, sizes, max_hops, cycle, order)
        answers[example] = cycle[(start + hops) % num_links]
    return answers


@dataclass(kw_only=True, eq=False)
class Chain(Synthetic):
    """Links that form a cycle of names, filler, and a question at the end; the label is the name some hops away.

    Example: b>d . a>b . . d>a ?a+2 is class 3, d, written with letters for names and a point for filler. A link and the
    question are one token each: ids are 0 for filler, 1 + a (names + hops) + b for a link from a to b, and the same
    with b = names + h - 1 for the question of h hops from a. Links are at any positions but the last, in any order.

    Args:
        links: numbers of links of a sequence, equally frequent.
        names: number of names, the classes.
        hops: the question is of 1 to ``hops`` hops, equally frequent.
    """

    name = "chain"
    version = "1.0.0"
    origin = "generated; pointer chasing with one query per sequence"
    dtype = np.int16
    lengths = tuple(2**k for k in range(6, 11))

    length: int = 64
    links: Sequence[int] = (3, 4, 6)
    names: int = 32
    hops: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        most_links = min(self.length - 1, self.names)
        # Ids are int16.
        largest_id = self.names * (self.names + self.hops)
        links_fit = len(self.links) > 0
        if links_fit:
            links_fit = self.hops < min(self.links) and max(self.links) <= most_links
        self.require(
            (self.hops >= 1, "at least one hop"),
            (links_fit, f"source.links from {self.hops + 1} to {most_links}"),
            (largest_id < 2**15 - 1, "source.names * (source.names + source.hops) below 32,767"),
        )
        # Names of the tokens: filler, then the links and the questions of each name.
        names = name_keys(self.names, "n")
        tokens = ["."]
        for name in names:
            tokens += [f"{name}>{target}" for target in names]
            tokens += [f"?{name}+{hops}" for hops in range(1, self.hops + 1)]
        self.alphabet = tuple(tokens)
        # Chance level of a guess among the names of the sequence other than the one in the question.
        chances = [1 / (n - 1) for n in self.links]
        self.analytic_chance = 100 * float(np.mean(chances))

    def fill(self, key: np.uint64, index: np.ndarray, num_tokens: int, tokens: np.ndarray) -> None:
        sizes = np.array(self.links)
        _fill(key, index, self.length, num_tokens, tokens, sizes, self.names, self.hops)

    def answers(self, key: np.uint64, n: int) -> np.ndarray:
        sizes = np.array(self.links)
        return _answers(key, n, sizes, self.names, self.hops)
