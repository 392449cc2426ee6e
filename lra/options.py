"""Choices and ranges of options: ``Literal`` lists choices, ``Annotated`` with a ``Range`` bounds numbers."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

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
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        # Bounds as words: "from 1 to 8", "above 0", "of 1 or more".
        low = f"above {self.above:g}" if self.above is not None else f"from {self.least}"
        high = f"below {self.below:g}" if self.below is not None else f"to {self.most}"
        if self.most is None and self.below is None:
            return low if self.above is not None else f"of {self.least} or more"
        return high if self.above is self.least is None else f"{low} {high}"


Positive = Annotated[int, Range(1)]
Whole = Annotated[int, Range(0)]
Share = Annotated[float, Range(0, 1)]
Above = Annotated[float, Range(above=0)]


class Checked:
    """A class that refuses keyword arguments outside the choices or the range of their annotations by a ValueError."""

    def __new__(cls, *arguments: Any, **options: Any):
        for owner in cls.__mro__:
            for name, kind in inspect.get_annotations(owner.__init__).items():
                if name in options:
                    _check(name, options[name], kind)
        return super().__new__(cls)


def _check(name: str, value: Any, kind: Any) -> None:
    # Choices, a range, or one of them with null.
    if get_origin(kind) is Literal:
        one_of(name, value, kind)
    elif get_origin(kind) is Annotated and isinstance(kind.__metadata__[0], Range):
        in_range(name, value, kind.__metadata__[0])
    elif value is not None and NoneType in get_args(kind) and len(get_args(kind)) == 2:
        _check(name, value, get_args(kind)[0])


def one_of(name: str, value: Any, words: Any) -> None:
    """Raise ValueError if the value of an option is not a valid choice.

    Args:
        name: name of the option.
        value: given.
        words: a Literal of the choices.
    """
    if value not in get_args(words):
        raise ValueError(f"{name} must be one of {', '.join(map(str, get_args(words)))}, not {value!r}")


def in_range(name: str, value: float, bounds: Range, most: str = "") -> None:
    """Raise ValueError if the value of an option is out of range.

    Args:
        name: name of the option.
        value: given.
        bounds: the range.
        most: meaning of the upper bound, for the message.
    """
    if value not in bounds:
        what = f" ({most})" if most else ""
        raise ValueError(f"{name} must be {str(bounds).removeprefix('of ')}{what}, not {value}")


def is_name(text: str) -> bool:
    """Whether a text can be the name of a folder on every system."""
    plain = re.fullmatch(r"[^/\\\x00-\x1f\x7f]{1,150}", text)
    return plain is not None and text.strip(". ") != "" and text.strip() == text
