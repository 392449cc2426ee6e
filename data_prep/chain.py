"""Links between names and a question about several hops along them: composition of lookups."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lra.compiled import compiled

from .counter_rng import below
from .synthetic import Synthetic, different, state_of, word

_SIZE, _START, _HOPS, _FIRST = 1, 2, 3, 4  # words of an example: number of links, the question, then the names


@compiled
def _draw(state, sizes, hops, cycle, order):
    """Draw the names cycle[:n] of the n links, each of which leads to the next one, the last to the first.

    Returns:
        The number of links, the place in the cycle of the name that the question starts from, and the number of hops.
    """
    n = sizes[below(word(state, _SIZE), len(sizes))]
    different(state, _FIRST, cycle[:n], order)
    return n, below(word(state, _START), n), 1 + below(word(state, _HOPS), hops)


@compiled
def _fill(key, index, length, kept, tokens, sizes, names, hops):
    most = sizes.max()
    cycle, order, links = np.empty(most, np.int64), np.empty(names, np.int64), np.empty((2, length), np.int64)
    for row, example in enumerate(index):
        state = state_of(key, example)
        n, start, far = _draw(state, sizes, hops, cycle, order)
        different(state, _FIRST + most, links[0, :n], links[1, : length - 1])  # places of the links
        for i in range(n):
            if links[0, i] < kept:
                tokens[row, links[0, i]] = 1 + cycle[i] * (names + hops) + cycle[(i + 1) % n]
        if length <= kept:
            tokens[row, length - 1] = 1 + cycle[start] * (names + hops) + names + far - 1


@compiled
def _answers(key, n, sizes, names, hops):
    answers, cycle, order = np.empty(n, np.int64), np.empty(sizes.max(), np.int64), np.empty(names, np.int64)
    for example in range(n):
        links, start, far = _draw(state_of(key, example), sizes, hops, cycle, order)
        answers[example] = cycle[(start + far) % links]
    return answers


@dataclass(kw_only=True, eq=False)
class Chain(Synthetic):
    """Links that make a cycle of names, filler, and a question at the end; the label is the name some hops away.

    Example: b>d . a>b . . d>a ?a+2 is class 3, d, written with letters for names and a point for filler. A link and the
    question are one token each: ids are 0 for filler, 1 + a (names + hops) + b for a link from a to b, and the same
    with b = names + h - 1 for the question of h hops from a. Links are at any places but the last, in any order.

    Args:
        links: numbers of links of a row; each is as frequent as the others.
        names: number of names, the classes.
        hops: the question is of 1 to ``hops`` hops, each as frequent as the others.
    """

    name = "chain"
    version = "1.0.0"
    origin = "generated; pointer chasing with one query a row"
    dtype = np.int16
    lengths = tuple(2**k for k in range(6, 11))

    length: int = 64
    links: Sequence[int] = (3, 4, 6)
    names: int = 32
    hops: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        links, names, hops = self.links, self.names, self.hops
        most = min(self.length - 1, names)
        self.need(
            (hops >= 1, "at least one hop"),
            (len(links) > 0 and all(hops < n <= most for n in links), f"source.links from {hops + 1} to {most}"),
            (names * (names + hops) < 2**15 - 1, "source.names times source.names + source.hops to be below 32,767"),
        )
        words = [chr(ord("a") + k) if names <= 26 else f"n{k}" for k in range(names)]
        ends = lambda a: (*(f"{a}>{b}" for b in words), *(f"?{a}+{h}" for h in range(1, hops + 1)))
        self.alphabet = (".", *(word for a in words for word in ends(a)))
        self.floor = 100 * float(np.mean([1 / (n - 1) for n in links]))  # any name of the row but the one asked about

    def fill(self, key: np.uint64, index: np.ndarray, length: int, kept: int, tokens: np.ndarray) -> None:
        _fill(key, index, length, kept, tokens, np.array(self.links), self.names, self.hops)

    def answers(self, key: np.uint64, n: int, length: int) -> np.ndarray:
        return _answers(key, n, np.array(self.links), self.names, self.hops)
