"""Writes to registers and one read: associative recall (Arora et al. 2023, Zoology) and memory that is overwritten."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lra.compiled import compiled

from .synthetic import Synthetic, assignment_tokens, draw_below, draw_distinct, pair_id, state_of

# Random words of an example, by number: number of writes, the write asked for, then registers, values, positions.
_SIZE = 1
_ASKED = 2
_FIRST = 3


@compiled
def _draw(state, sizes, values, overwrite, writes, order):
    """Draw registers writes[0, :n] and values writes[1, :n] of the n writes of an example.

    Args:
        state: state of the example.
        sizes: numbers of writes.
        values: number of values.
        overwrite: True for independent draws, False for distinct registers and distinct values.
        writes: result (2, largest number of writes).
        order: two scratch arrays, (registers,) and (values,).

    Returns:
        The number of writes, the register of the read and the value that it holds.
    """
    n = sizes[draw_below(state, _SIZE, len(sizes))]
    registers = len(order[0])
    # Independent draws, or draws without repetition.
    if overwrite:
        for i in range(n):
            writes[0, i] = draw_below(state, _FIRST + i, registers)
            writes[1, i] = draw_below(state, _FIRST + n + i, values)
    else:
        draw_distinct(state, _FIRST, writes[0, :n], order[0])
        draw_distinct(state, _FIRST + n, writes[1, :n], order[1])
    # The read asks for the register of one of the writes.
    write = draw_below(state, _ASKED, n)
    target = writes[0, write]
    # The last write to the register decides.
    last = n - 1
    while writes[0, last] != target:
        last -= 1
    return n, target, writes[1, last]


@compiled
def _fill(key, index, length, num_tokens, tokens, gap, sizes, registers, values, overwrite, largest):
    writes = np.empty((2, largest), np.int64)
    order = (np.empty(registers, np.int64), np.empty(values, np.int64))
    num_positions = length - 1 - gap
    # The words of the positions follow the words of registers and values.
    first_word = _FIRST + 2 * largest
    for number, example in enumerate(index):
        state = state_of(key, example)
        n, target, _ = _draw(state, sizes, values, overwrite, writes, order)
        # Choose n positions, each set of them with the same probability (Knuth's algorithm S).
        done = 0
        for position in range(num_positions):
            num_left = num_positions - position
            draw = draw_below(state, first_word + position, num_left)
            if draw < n - done:
                if position < num_tokens:
                    register = writes[0, done]
                    value = writes[1, done]
                    tokens[number, position] = pair_id(register, value, values + 1)
                done += 1
        # The read at the end, whose id follows the ids of the register's writes.
        if length <= num_tokens:
            tokens[number, length - 1] = pair_id(target, values, values + 1)


@compiled
def _answers(key, n, sizes, registers, values, overwrite, largest):
    # Only the writes are drawn, not their positions.
    answers = np.empty(n, np.int64)
    writes = np.empty((2, largest), np.int64)
    order = (np.empty(registers, np.int64), np.empty(values, np.int64))
    for example in range(n):
        state = state_of(key, example)
        _, _, answer = _draw(state, sizes, values, overwrite, writes, order)
        answers[example] = answer
    return answers


@dataclass(kw_only=True, eq=False)
class Registers(Synthetic):
    """Writes of values to registers among filler; the last token reads a register, the label is the value it holds.

    Example: b=2 . a=3 b=0 . . a=1 . ?b is class 0, written with letters for registers, digits for values and a point
    for filler. A write is one token, as is the read: ids are 0 for filler, 1 + r (values + 1) + v for a write of v into
    register r, and the id after its last write for the read of a register. Writes are at any positions but the last
    and the ``gap`` before it. The read asks for the register of one of the writes, each with the same probability.

    Args:
        writes: numbers of writes of a sequence, equally frequent.
        registers: number of registers.
        values: number of values.
        overwrite: True: registers and values of the writes are independent of each other, so that a register is
            written again and again. False: they all differ within a sequence, which is associative recall.
        gap: number of positions before the read that hold filler.
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
        # Ids are int16.
        largest_id = self.registers * (self.values + 1)
        num_positions = self.length - 1 - self.gap
        most_writes = num_positions
        bounds = ""
        if not self.overwrite:
            most_writes = min(num_positions, self.registers, self.values)
            bounds = " (the smallest of registers, values and positions)"
        writes_fit = len(self.writes) > 0
        if writes_fit:
            writes_fit = min(self.writes) >= 1 and max(self.writes) <= most_writes
        self.require(
            (0 <= self.gap < self.length - 1, f"source.gap from 0 to {self.length - 2}"),
            (self.registers >= 1 and self.values >= 2, "at least one register and two values"),
            (largest_id < 2**15, "source.registers * (source.values + 1) below 32,768"),
            (writes_fit, f"source.writes from 1 to {most_writes}{bounds}"),
        )
        self.alphabet = assignment_tokens(self.registers, self.values, "r")
        # Chance level of a guess among the values of a sequence; unknown with ``overwrite``.
        if not self.overwrite:
            chances = [1 / n for n in self.writes]
            self.analytic_chance = 100 * float(np.mean(chances))

    @property
    def arguments(self) -> dict[str, Any]:
        arguments = super().arguments
        # The option is younger than published records: without a gap the provenance stays as it was.
        if not self.gap:
            del arguments["gap"]
        return arguments

    def fill(self, key: np.uint64, index: np.ndarray, num_tokens: int, tokens: np.ndarray) -> None:
        _fill(key, index, self.length, num_tokens, tokens, self.gap, *self._sizes())

    def answers(self, key: np.uint64, n: int) -> np.ndarray:
        return _answers(key, n, *self._sizes())

    def _sizes(self) -> tuple:
        return np.array(self.writes), self.registers, self.values, self.overwrite, max(self.writes)
