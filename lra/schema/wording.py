"""The texts of messages about options: valid values and the given one."""

import json
from collections.abc import Sequence
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from ..ops.options import Range

LONGEST = 60  # characters of a value
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}


def expected(kind: Any) -> str:
    """Describe the values that an option takes, such as "a whole number of 1 or more, or null"."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _annotation(parts[0], parts[1:])
    if origin in (Union, UnionType):
        literals = [value for part in parts if get_origin(part) is Literal for value in get_args(part)]
        if literals and bool in parts:
            literals, parts = [True, False, *literals], tuple(part for part in parts if part is not bool)
        others = [expected(p) for p in parts if get_origin(p) is not Literal and p is not NoneType]
        if set(parts) - {NoneType} == {int, float}:
            others = ["a number"]
        texts = [*others, *map(_plain, literals)] if others else [expected(Literal[tuple(literals)])]
        return ", ".join(texts) + (", or null" if NoneType in parts else "")
    if origin is Literal:
        return f"one of {', '.join(map(_plain, parts))}" if len(parts) > 1 else _plain(parts[0])
    if origin in (list, Sequence):
        return f"a list, each {expected(parts[0])}"
    if origin is dict or is_dataclass(kind):
        return "keys with their values"
    return WORDS.get(kind, "given")


def _annotation(kind: Any, rules: tuple) -> str:
    if texts := [rule.text for rule in rules if hasattr(rule, "text")]:
        return texts[-1]
    if any(hasattr(rule, "least_items") for rule in rules):
        return f"{expected(get_args(kind)[0])}, or a list of such"
    return " ".join([expected(kind), *(str(rule) for rule in rules if isinstance(rule, Range))])


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def shown(value: Any) -> str:
    """Format a value as a user types it, cut to ``LONGEST`` characters; text in quotes."""
    if isinstance(value, str):
        text = repr(value)
    elif value is None or isinstance(value, bool):
        text = json.dumps(value)
    else:
        text = str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
