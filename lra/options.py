"""Options: their types, choices and ranges, and the message about a value that an option does not take.

``Literal`` lists choices, ``Annotated`` with a ``Range`` bounds numbers. The command line (``lra.config``) and the
constructors that Python code calls (``Checked``) read the same annotations and write the same messages.
"""

import inspect
import json
import numbers
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

from annotated_types import GroupedMetadata, Interval, MinLen

# Maximum number of characters of a value in a message.
MAX_LENGTH = 60
TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
# Types of numbers with their abstract classes, which include the numbers of NumPy.
NUMBERS: dict[Any, type] = {int: numbers.Integral, float: numbers.Real}


@dataclass(frozen=True)
class Range(GroupedMetadata):
    """A range of numbers. ``least`` and ``most`` belong to it, ``above`` and ``below`` do not; None for no bound.

    pydantic iterates over it to get its constraints.
    """

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def __iter__(self) -> Iterator:
        yield from Interval(ge=self.least, le=self.most, gt=self.above, lt=self.below)

    def __contains__(self, value: float) -> bool:
        if self.least is not None and not value >= self.least:
            return False
        if self.most is not None and not value <= self.most:
            return False
        if self.above is not None and not value > self.above:
            return False
        return self.below is None or value < self.below

    def __str__(self) -> str:
        # "from 1 to 8"; "above 0 and at most 1"; "1 or more"; "above 0".
        is_closed = self.least is not None and self.most is not None
        if is_closed:
            return f"from {self.least} to {self.most}"
        has_upper_bound = self.most is not None or self.below is not None
        if self.least is not None and not has_upper_bound:
            return f"{self.least} or more"
        bounds = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        texts = [f"{words} {bound:g}" for words, bound in bounds.items() if bound is not None]
        return " and ".join(texts)


# Whole numbers of 1 or more, and of 0 or more.
Positive = Annotated[int, Range(1)]
Whole = Annotated[int, Range(0)]
# Fractions from 0 to 1; numbers above 0, and numbers of at least 0.
Share = Annotated[float, Range(0, 1)]
Above = Annotated[float, Range(above=0)]
NonNegative = Annotated[int | float, Range(0)]


class Checked:
    """A class whose keyword arguments must have the type, the range or the choices of their annotations.

    Positional arguments are not checked.

    Raises:
        ValueError: a keyword argument has another type or value; the message is the same as on the command line.
    """

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        unchecked = dict(options)
        for owner in cls.__mro__:
            # The constructors of object and of C classes have no annotations.
            constructor = getattr(owner, "__init__", None)
            annotations = getattr(constructor, "__annotations__", {})
            for name, kind in annotations.items():
                # Only the nearest annotation counts: a subclass may allow other values than the class it extends.
                if name not in unchecked:
                    continue
                value = unchecked.pop(name)
                if not accepts(kind, value):
                    raise ValueError(rejection(name, value, kind))
        return super().__new__(cls)


def accepts(kind: Any, value: Any) -> bool:
    """Whether an annotation allows a value: its type, its range and its choices.

    Other annotations, such as lists, tensors and classes, allow every value.
    """
    origin = get_origin(kind)
    arguments = get_args(kind)
    # Choices, a type with rules, a union.
    if origin is Literal:
        # True == 1 and 2.0 == 2, but they are other values.
        return any(type(value) is type(choice) and value == choice for choice in arguments)
    if origin is Annotated:
        base, *rules = arguments
        if not accepts(base, value):
            return False
        ranges = [rule for rule in rules if isinstance(rule, Range)]
        return all(value in bounds for bounds in ranges)
    if origin in (Union, UnionType):
        return any(accepts(part, value) for part in arguments)
    # A list, a callable and others of which nothing is checked.
    if origin is not None:
        return True

    # A plain type. In Python, a bool is an int too.
    if kind is NoneType:
        return value is None
    if kind in NUMBERS:
        is_number = isinstance(value, NUMBERS[kind])
        return is_number and not isinstance(value, bool)
    if kind in (bool, str):
        return isinstance(value, kind)
    return True


def require_choice(name: str, value: Any, choices: Any) -> None:
    """Raise ValueError if the value of an option is not a valid choice.

    Args:
        name: name of the option.
        value: value of the option.
        choices: a Literal, or another annotation.
    """
    if not accepts(choices, value):
        raise ValueError(rejection(name, value, choices))


def require_range(name: str, value: float, bounds: Range, bound: str = "") -> None:
    """Raise ValueError if the value of an option is out of range.

    Args:
        name: name of the option.
        value: value of the option.
        bounds: the range.
        bound: explanation of the last bound of the range, for the message; "" for none.
    """
    if value not in bounds:
        meaning = f" ({bound})" if bound else ""
        raise ValueError(f"{name} must be {bounds}{meaning}, not {format_value(value)}")


def rejection(name: str, value: Any, kind: Any) -> str:
    """Return the message about a value that an option does not take: option, valid values, given value.

    Args:
        name: name of the option.
        value: value of the option.
        kind: annotation of the option.
    """
    return f"{name} must be {_expected_instead(kind, value)}, not {format_value(value)}"


def _expected_instead(kind: Any, value: Any) -> str:
    """Describe the values that an option takes; for a number of the right type, the range alone: "1 or more"."""
    origin = get_origin(kind)
    arguments = get_args(kind)
    if origin is Annotated:
        base, rule, *_ = arguments
        if isinstance(rule, Range) and accepts(base, value):
            return str(rule)
    # A union with null: describe the other part in this way, then add null.
    if origin in (Union, UnionType) and NoneType in arguments:
        parts = [part for part in arguments if part is not NoneType]
        if len(parts) == 1:
            return f"{_expected_instead(parts[0], value)}, or null"
    return expected(kind)


def expected(kind: Any) -> str:
    """Describe the values that an option takes, such as "a whole number of 1 or more, or null"."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _expected_annotated(kind)
    if origin in (Union, UnionType):
        return _expected_union(get_args(kind))
    if origin is Literal:
        choices = [_plain(value) for value in get_args(kind)]
        return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    if origin in (list, Sequence):
        item = get_args(kind)[0]
        return f"a list, each item {expected(item)}"
    if kind in TYPE_NAMES:
        return TYPE_NAMES[kind]
    # A dictionary, or a class whose fields are options. ``Any`` is a class too.
    is_section = inspect.isclass(kind) and kind is not Any
    return "keys with their values" if is_section or origin is dict else "given"


def _expected_annotated(kind: Any) -> str:
    """Describe a type with rules: its own description, or the type with its range."""
    base, *rules = get_args(kind)
    # A description by ``pydantic.Field``; the last one counts.
    for rule in reversed(rules):
        description = getattr(rule, "description", None)
        if description:
            return description
    # ``schema.Some``: a single value stands for a list of one.
    if any(isinstance(rule, MinLen) for rule in rules):
        item = get_args(base)[0]
        return f"{expected(item)}, or a list of such values"

    # The type with its range: "a whole number of 1 or more", but "a whole number from 1 to 8".
    text = expected(base)
    for rule in rules:
        if isinstance(rule, Range):
            bounds = str(rule)
            preposition = " of" if bounds[0].isdigit() else ""
            text += f"{preposition} {bounds}"
    return text


def _expected_union(parts: tuple) -> str:
    """Describe a union: its types, then its choices, then null."""
    choices: list = []
    for part in parts:
        if get_origin(part) is Literal:
            choices += get_args(part)
    types = [part for part in parts if get_origin(part) is not Literal and part is not NoneType]
    # Truth values are listed with the other choices.
    if choices and bool in types:
        types.remove(bool)
        choices = [True, False, *choices]

    texts = ["a number"] if set(types) == {int, float} else [expected(part) for part in types]
    if texts:
        texts += [_plain(value) for value in choices]
    else:
        texts = [expected(Literal[tuple(choices)])]
    if NoneType in parts:
        texts.append("or null")
    return ", ".join(texts)


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def format_value(value: Any) -> str:
    """Format a value for a message, cut to ``MAX_LENGTH`` characters: text in quotes, null and booleans as in yaml."""
    if isinstance(value, str):
        text = repr(value)
    elif value is None or isinstance(value, bool):
        text = json.dumps(value)
    else:
        text = str(value)
    return text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}..."


def is_name(text: str) -> bool:
    """Whether a text is accepted as the name of a folder.

    It has 1 to 150 characters, no slash, backslash or control character, no outer white space, and not only dots. It
    interpolates nothing, since it may become part of a configuration.
    """
    has_valid_characters = re.fullmatch(r"[^/\\\x00-\x1f\x7f]{1,150}", text) is not None and "${" not in text
    has_content = text.strip(". ") != ""
    has_no_margins = text.strip() == text
    return has_valid_characters and has_content and has_no_margins


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a tree to dotted keys: {"a": {"b": 1}} -> {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
