"""Choices and ranges of options: ``Literal`` lists choices, ``Annotated`` with a ``Range`` bounds numbers."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from annotated_types import GroupedMetadata, Interval


@dataclass(frozen=True)
class Range(GroupedMetadata):
    """A range of numbers, from ``least`` or ``above`` a bound to ``most`` or ``below`` one; None for no bound."""

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
        # Bounds as words: "from 1 to 8", "above 0", "of 1 or more".
        low = f"above {self.above:g}" if self.above is not None else f"from {self.least}"
        high = f"below {self.below:g}" if self.below is not None else f"to {self.most}"
        has_upper_bound = self.most is not None or self.below is not None
        has_lower_bound = self.least is not None or self.above is not None
        if has_upper_bound:
            return f"{low} {high}" if has_lower_bound else high
        if self.above is not None:
            return low
        return f"of {self.least} or more"


Positive = Annotated[int, Range(1)]
Whole = Annotated[int, Range(0)]
Share = Annotated[float, Range(0, 1)]
Above = Annotated[float, Range(above=0)]


class Checked:
    """A class that rejects keyword arguments outside the choices or the range of their annotations by a ValueError."""

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        for owner in cls.__mro__:
            # object and C classes have slot wrappers, without annotations.
            constructor = vars(owner).get("__init__")
            annotations = inspect.get_annotations(constructor) if constructor else {}
            for name, kind in annotations.items():
                if name in options:
                    _check(name, options[name], kind)
        return super().__new__(cls)


def _check(name: str, value: Any, kind: Any) -> None:
    arguments = get_args(kind)
    # Choices.
    if get_origin(kind) is Literal:
        one_of(name, value, kind)
        return
    # A range.
    if get_origin(kind) is Annotated:
        bounds = kind.__metadata__[0]
        if isinstance(bounds, Range):
            in_range(name, value, bounds)
        return
    # One of them, or null.
    is_optional = NoneType in arguments and len(arguments) == 2
    if is_optional and value is not None:
        _check(name, value, arguments[0])


def one_of(name: str, value: Any, choices: Any) -> None:
    """Raise ValueError if the value of an option is not a valid choice.

    Args:
        name: name of the option.
        value: value of the option.
        choices: a Literal.
    """
    valid = get_args(choices)
    if value not in valid:
        names = ", ".join(map(str, valid))
        raise ValueError(f"{name} must be one of {names}, not {value!r}")


def in_range(name: str, value: float, bounds: Range, upper_bound: str = "") -> None:
    """Raise ValueError if the value of an option is out of range.

    Args:
        name: name of the option.
        value: value of the option.
        bounds: the range.
        upper_bound: meaning of the upper bound, for the message.
    """
    if value not in bounds:
        meaning = f" ({upper_bound})" if upper_bound else ""
        text = str(bounds).removeprefix("of ")
        raise ValueError(f"{name} must be {text}{meaning}, not {value}")


def is_name(text: str) -> bool:
    """Whether a text can be the name of a folder on every system."""
    has_valid_characters = re.fullmatch(r"[^/\\\x00-\x1f\x7f]{1,150}", text) is not None
    has_content = text.strip(". ") != ""
    has_no_margins = text.strip() == text
    return has_valid_characters and has_content and has_no_margins
