"""The ids of ListOps in pickles, whose vocabulary was never saved.

The preparation scripts number the tokens in the order of a Python set of strings, which is another one in every run.
The expressions and their values determine the numbering up to symmetry: the id that ends every expression is the
bracket, the ids that begin one are the operators, and the values distinguish operators and digits. The recovered
numbering is then checked: every expression of every file must evaluate to its label.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..expressions import TOKENS, evaluate

NUM_TOKENS = len(TOKENS)
NUM_OPERATORS = 4
# Largest number of orders of the digits to try for one order of the operators.
MOST_ORDERS = 10_000
REMEDY = "use the TSV files by source.release=, or generate the task: lra data task=listops"


Sequences = list[np.ndarray]  # ids (length,) of each expression
Order = tuple[int, ...]  # ids of the file: of the digits 0..9, or of MIN, MAX, MED, SM
Bounds = dict[int, int]  # smallest or largest value of each id
Examples = list[tuple[np.ndarray, int]]  # ids (length,) and value of each expression


@dataclass(frozen=True)
class IdMap:
    """A table (256,) from the ids of a file to stored ids; 0 for an id that does not occur."""

    table: np.ndarray

    def apply(self, ids: np.ndarray, label: int, where: str) -> np.ndarray:
        """Convert an expression.

        Args:
            ids: ids (length,) of the file without padding.
            label: its label.
            where: file and example, for messages.

        Returns:
            Stored ids (length,) uint8.

        Raises:
            ValueError: it is not an expression, or its value is not the label.
        """
        is_valid = len(ids) > 0 and ids.min() >= 0 and ids.max() < len(self.table)
        if not is_valid:
            raise ValueError(f"{where}: not the ids of an expression; {REMEDY}")
        stored = self.table[ids]
        value = evaluate(stored)
        if value != label:
            reason = "is not an expression" if value < 0 else f"evaluates to {value}, its label is {label}"
            raise ValueError(f"{where}: with the numbering of the smallest file it {reason}; {REMEDY}")
        return stored


def recover_ids(sequences: Sequences, labels: list[int], where: str) -> IdMap:
    """Recover the numbering of the tokens.

    Args:
        sequences: ids (length,) of each expression, without padding.
        labels: values.
        where: name of the file, for messages.

    Raises:
        ValueError: there is none with which the expressions evaluate to their labels.
    """
    # The ids that occur, at most one for each token.
    distinct = set()
    for ids in sequences:
        distinct.update(np.unique(ids).tolist())
    used = sorted(distinct)
    num_used = len(used)
    in_range = num_used > 0 and used[0] >= 1 and used[-1] <= 255
    if not in_range or num_used > NUM_TOKENS:
        raise ValueError(f"{where}: {num_used} different ids, at most {NUM_TOKENS} from 1 to 255 are valid; {REMEDY}")

    # Files that this package wrote need no recovery.
    ids = np.arange(256)
    table = np.where(ids <= NUM_TOKENS, ids, 0)
    identity = IdMap(table.astype(np.uint8))
    if _is_consistent(identity, sequences, labels):
        return identity

    # All expressions but single digits end with the bracket.
    examples = zip(sequences, labels, strict=True)
    compound = [(ids, label) for ids, label in examples if len(ids) > 1]
    first_ids = {int(ids[0]) for ids, _ in compound}
    closing = {int(ids[-1]) for ids, _ in compound}
    if len(closing) != 1:
        raise ValueError(
            f"{where}: the expressions have no closing brackets, which the preparation script dropped, so that their "
            f"values cannot be known; {REMEDY}"
        )
    (close,) = closing

    # They begin with an operator; the other ids are digits.
    starts = sorted(first_ids)
    num_starts = len(starts)
    if num_starts != NUM_OPERATORS or num_used != NUM_TOKENS:
        raise ValueError(
            f"{where}: {num_used} different ids, {num_starts} of them begin an expression; "
            f"ListOps has {NUM_TOKENS} and {NUM_OPERATORS}; {REMEDY}"
        )
    digits = [id for id in used if id not in (close, *starts)]

    # Try the likeliest orders of operators and digits until all values are right.
    for operators in _orders_of_operators(starts, compound):
        for order in _orders_of_digits(digits, operators, close, compound):
            id_map = _id_map(order, operators, close)
            if _is_consistent(id_map, sequences, labels):
                return id_map
    raise ValueError(f"{where}: no numbering of the tokens makes the expressions equal to their labels; {REMEDY}")


def _id_map(digits: Order, operators: Order, close: int) -> IdMap:
    # Stored ids are 1 for the digit 0 to 15 for the bracket.
    table = np.zeros(256, np.uint8)
    tokens = [*digits, *operators, close]
    for stored, id in enumerate(tokens, start=1):
        table[id] = stored
    return IdMap(table)


def _is_consistent(id_map: IdMap, sequences: Sequences, labels: list[int]) -> bool:
    """Whether every expression evaluates to its label."""
    for ids, label in zip(sequences, labels, strict=True):
        stored = id_map.table[ids]
        if evaluate(stored) != label:
            return False
    return True


def _orders_of_operators(starts: list[int], compound: Examples) -> list[Order]:
    """Order the operators as MIN, MAX, MED, SM, the likeliest order first: MIN has small values, MAX large ones."""
    # The mean value of the expressions that begin with each operator.
    means = {}
    for start in starts:
        labels = [label for ids, label in compound if ids[0] == start]
        means[start] = np.mean(labels)
    minimum, lower, higher, maximum = sorted(starts, key=means.__getitem__)
    # MED and SM have nearly the same mean, so both orders of them are likely.
    orders: list[Order] = [(minimum, maximum, lower, higher), (minimum, maximum, higher, lower)]
    for order in itertools.permutations(starts):
        if order not in orders:
            orders.append(order)
    return orders


def _orders_of_digits(digits: list[int], operators: Order, close: int, compound: Examples) -> Iterator[Order]:
    """Yield the orders of the digits 0..9 that the outermost MIN and MAX allow.

    A digit directly below an outermost MAX is at most the label, one below an outermost MIN at least the label.
    """
    # Bounds of each digit: none at first.
    minimum, maximum = operators[:2]
    low = dict.fromkeys(digits, 0)
    high = dict.fromkeys(digits, 9)
    for ids, label in compound:
        if ids[0] in (minimum, maximum):
            # Digits at depth 1 are arguments of the outermost operator.
            is_digit = np.isin(ids, digits)
            num_opened = np.cumsum(np.isin(ids, operators))
            num_closed = np.cumsum(ids == close)
            is_argument = is_digit & (num_opened - num_closed == 1)
            for id in np.unique(ids[is_argument]).tolist():
                if ids[0] == maximum:
                    high[id] = min(high[id], label)
                else:
                    low[id] = max(low[id], label)
    yield from itertools.islice(_assignments(digits, low, high), MOST_ORDERS)


def _assignments(digits: list[int], low: Bounds, high: Bounds, prefix: Order = ()) -> Iterator[Order]:
    """Yield the digits in the orders in which each has a value within its bounds."""
    # The prefix has the ids of the digits 0 .. value - 1.
    value = len(prefix)
    if value == len(digits):
        yield prefix
        return
    for id in digits:
        if id in prefix:
            continue
        if low[id] <= value <= high[id]:
            yield from _assignments(digits, low, high, (*prefix, id))
