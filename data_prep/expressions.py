"""Expressions of ListOps: their tokens and ids, their values, and the official text files."""

from collections.abc import Iterable, Iterator

import numpy as np

from lra.compiled import compiled

from .lines import text_lines

TOKENS = (*"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]")  # ids 1..15; 0 is padding
IDS = {token: id for id, token in enumerate(TOKENS, start=1)}
DIGIT = IDS["0"]
OPERATOR = IDS["[MIN"]
CLOSE = IDS["]"]

Example = tuple[np.ndarray, int]  # ids (length,) uint8, answer 0..9


def encode(text: str) -> np.ndarray:
    """Encode an expression, with or without round parentheses, as ids (length,) uint8.

    Raises:
        ValueError: a token is unknown.
    """
    try:
        return np.array([IDS[token] for token in text.replace("(", "").replace(")", "").split()], np.uint8)
    except KeyError as error:
        raise ValueError(f"unknown token {error}; the tokens are {' '.join(TOKENS)}") from None


def decode(ids: Iterable[int]) -> str:
    """Decode ids (length,) to text, without padding."""
    return " ".join(TOKENS[id - 1] for id in map(int, ids) if id)


def check_answer(ids: np.ndarray, answer: int) -> None:
    """Raise ValueError unless ids (length,) are an expression with this answer."""
    value = evaluate(ids)
    if value != answer:
        reason = "not an expression" if value < 0 else f"the answer is {value}, not {answer}"
        raise ValueError(reason)


def read_tsv(lines: Iterable[bytes], name: str) -> Iterator[Example]:
    """Read the examples of one official file.

    Raises:
        ValueError: the heading is wrong, another line is not an expression, a tab and a digit, or there is none.
    """
    is_empty = True
    for number, line in text_lines(lines, name):
        source, _, target = line.decode(errors="replace").partition("\t")
        if number == 1:
            if (source, target) != ("Source", "Target"):
                raise ValueError(f"{name}: the first line must be Source, a tab, Target")
            continue
        if not source or len(target) != 1 or target not in "0123456789":
            raise ValueError(f"{name}, line {number}: not an expression, a tab and a digit")
        try:
            ids = encode(source)
            check_answer(ids, int(target))
        except ValueError as error:
            raise ValueError(f"{name}, line {number}: {error}") from None
        yield ids, int(target)
        is_empty = False
    if is_empty:
        raise ValueError(f"{name} holds no example, only its first line")


@compiled
def evaluate(ids):
    """Evaluate an expression of stored ids (length,) uint8: its value 0..9, or -1 if it is not an expression."""
    values = np.empty(len(ids), np.int64)
    operators = np.empty(len(ids), np.int64)
    bases = np.empty(len(ids), np.int64)
    # Numbers of open operators and of values on the stack.
    depth = 0
    top = 0
    for position in range(len(ids)):
        token = ids[position]
        # An operator opens a level, a digit is a value, a bracket applies the operator to the values of its level.
        if OPERATOR <= token < CLOSE:
            operators[depth] = token - OPERATOR
            bases[depth] = top
            depth += 1
        elif DIGIT <= token < OPERATOR:
            values[top] = token - DIGIT
            top += 1
        else:
            if token != CLOSE or depth == 0:
                return -1
            depth -= 1
            base = bases[depth]
            # An operator without arguments.
            if top == base:
                return -1
            arguments = np.sort(values[base:top])
            top = base
            # MIN, MAX, MED (rounded down), SM (the sum modulo 10).
            operator = operators[depth]
            if operator == 0:
                value = arguments[0]
            elif operator == 1:
                value = arguments[-1]
            elif operator == 2:
                n = len(arguments)
                lower = arguments[(n - 1) // 2]
                upper = arguments[n // 2]
                value = (lower + upper) // 2
            else:
                value = arguments.sum() % 10
            values[top] = value
            top += 1
    is_complete = depth == 0 and top == 1
    return values[0] if is_complete else -1
