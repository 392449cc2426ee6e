"""Writes to registers and one read: associative recall (Arora et al. 2023, Zoology) and memory that is overwritten."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lra.compiled import compiled

from .counter_rng import below
from .synthetic import Synthetic, different, settings, state_of, word

_SIZE, _ASKED, _FIRST = 1, 2, 3  # words of an example: number of writes, the write that is asked for, then the rest


@compiled
def _draw(state, sizes, values, overwrite, written, order):
    """Draw registers written[0, :n] and values written[1, :n] of the n writes of an example; order: room to shuffle.

    Returns:
        The number of writes, and the register and the value that the label is about.
    """
    n, registers = sizes[below(word(state, _SIZE), len(sizes))], len(order[0])
    if overwrite:
        for i in range(n):
            written[0, i] = below(word(state, _FIRST + i), registers)
            written[1, i] = below(word(state, _FIRST + n + i), values)
    else:
        different(state, _FIRST, written[0, :n], order[0])
        different(state, _FIRST + n, written[1, :n], order[1])
    asked = written[0, below(word(state, _ASKED), n)]
    last = n - 1
    while written[0, last] != asked:
        last -= 1
    return n, asked, written[1, last]


@compiled
def _fill(key, index, length, kept, tokens, gap, sizes, registers, values, overwrite, most):
    written = np.empty((2, most), np.int64)
    order = (np.empty(registers, np.int64), np.empty(values, np.int64))
    for row, example in enumerate(index):
        state = state_of(key, example)
        n, asked, _ = _draw(state, sizes, values, overwrite, written, order)
        done = 0
        places = length - 1 - gap
        for place in range(places):  # each set of n places has the same probability (Knuth's algorithm S)
            if below(word(state, _FIRST + 2 * most + place), places - place) < n - done:
                if place < kept:
                    tokens[row, place] = 1 + written[0, done] * (values + 1) + written[1, done]
                done += 1
        if length <= kept:
            tokens[row, length - 1] = 1 + asked * (values + 1) + values


@compiled
def _answers(key, n, sizes, registers, values, overwrite, most):
    answers, written = np.empty(n, np.int64), np.empty((2, most), np.int64)
    order = (np.empty(registers, np.int64), np.empty(values, np.int64))
    for example in range(n):
        answers[example] = _draw(state_of(key, example), sizes, values, overwrite, written, order)[2]
    return answers


@dataclass(kw_only=True, eq=False)
class Registers(Synthetic):
    """Writes of values to registers among filler; the last token reads a register, the label is the value it holds.

    Example: b=2 . a=3 b=0 . . a=1 . ?b is class 0, written with letters for registers, digits for values and a point
    for filler. A write is one token, as is the read: ids are 0 for filler, 1 + r (values + 1) + v for a write of v into
    register r, and the id behind its last write for the read of a register. Writes are at any places but the last. The
    read asks for the register of one of the writes, each with the same probability.

    Args:
        writes: numbers of writes of a row; each is as frequent as the others.
        registers: number of registers.
        values: number of values, the classes.
        overwrite: True: registers and values of the writes are independent of each other, so that a register is
            written again and again. False: they all differ within a row, which is associative recall.
    """

    name = "registers"
    version = "1.0.0"
    origin = "generated; associative recall after Arora et al. 2023 (Zoology), overwriting after Liu et al. 2023"
    dtype = np.int16
    lengths = tuple(2**k for k in range(6, 11))

    length: int = 256
    writes: Sequence[int] = (64,)
    registers: int = 8
    values: int = 8
    overwrite: bool = True
    gap: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        registers, values, places = self.registers, self.values, self.length - 1 - self.gap
        most = places if self.overwrite else min(places, registers, values)
        self.need(
            (0 <= self.gap < self.length - 1, f"source.gap from 0 to {self.length - 2}"),
            (registers >= 1 and values >= 2, "at least one register and two values"),
            (registers * (values + 1) < 2**15, "source.registers times source.values + 1 to be below 32,768"),
            (
                len(self.writes) > 0 and all(1 <= n <= most for n in self.writes),
                f"source.writes from 1 to {most}"
                + ("" if self.overwrite else ", the registers, values and places there are"),
            ),
        )
        self.alphabet = settings(registers, values, "r")

    @property
    def arguments(self) -> dict[str, Any]:
        chosen = super().arguments
        if not self.gap:
            del chosen["gap"]  # rows without a gap are those of before there was one, with their file of floors
        return chosen

    @property
    def floor(self) -> float | None:
        """Accuracy in percent of a guess among the values of a row, if all of them are equally likely."""
        return None if self.overwrite else 100 * float(np.mean([1 / n for n in self.writes]))

    def fill(self, key: np.uint64, index: np.ndarray, length: int, kept: int, tokens: np.ndarray) -> None:
        _fill(key, index, length, kept, tokens, self.gap, *self._drawn())

    def answers(self, key: np.uint64, n: int, length: int) -> np.ndarray:
        return _answers(key, n, *self._drawn())

    def _drawn(self) -> tuple:
        return np.array(self.writes), self.registers, self.values, self.overwrite, max(self.writes)
