"""Conversion of a value to the annotated type of its option, or one line that names the valid values."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from omegaconf import BooleanNode, FloatNode, IntegerNode, StringNode

from .wording import expected, shown

ABSENT = "???"  # a value that the configuration leaves to the command line
NODES = {int: IntegerNode, float: FloatNode, bool: BooleanNode, str: StringNode, Path: StringNode}


class Wrong(Exception):
    """A value that an annotation does not allow."""


@dataclass(frozen=True)
class Rule:
    """A rule in an ``Annotated``, for values that type and range do not describe.

    Args:
        text: the valid values in words.
        holds: tests a value.
    """

    text: str
    holds: Callable[[Any], bool] = lambda value: True

    def __contains__(self, value: Any) -> bool:
        return self.holds(value)


@dataclass(frozen=True)
class Many:
    """The mark of an ``Annotated`` list of ``least_items`` or more, for which a single value is a list of one."""

    least_items: int = 1

    def __contains__(self, values: list) -> bool:
        return len(values) >= self.least_items


def typed(kind: Any, value: Any, name: str) -> Any:
    """Convert the value of an option.

    Args:
        kind: an annotation, or a dataclass with an annotation for each key.
        value: plain.
        name: of the option, for the message.

    Raises:
        ValueError: the option does not take the value; the message names the option, the valid values and this one.
    """
    try:
        return _convert(kind, value, name)
    except Wrong:
        raise ValueError(f"{name} must be {expected(kind)}, not {shown(value)}") from None


def _convert(kind: Any, value: Any, name: str) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _annotated(parts[0], parts[1:], value, name)
    if origin in (Union, UnionType):
        return _first(parts, value, name)
    if origin is Literal:
        return _literal(parts, value)
    if origin in (list, Sequence):
        if not isinstance(value, list):
            raise Wrong
        return [_convert(parts[0], item, name) for item in value]
    if origin is dict:
        if not isinstance(value, Mapping):
            raise Wrong
        return {key: typed(parts[1], item, f"{name}.{key}") for key, item in value.items()}
    if is_dataclass(kind):
        return section(kind, value, name)
    if isinstance(kind, type) and kind in NODES:
        return _leaf(kind, value)
    return value  # Any, no annotation, or a type that no command line can spell


def _leaf(kind: type, value: Any) -> Any:
    if value is None or value == ABSENT or (kind is bool and isinstance(value, int) and value not in (0, 1)):
        raise Wrong
    try:
        value = NODES[kind](value, is_optional=False)._value()
    except (ValueError, OverflowError):
        raise Wrong from None
    if kind in (int, float, bool) and not isinstance(value, kind):  # a node takes ${...} for what comes later
        raise Wrong
    if (kind is float and not math.isfinite(value)) or (kind is int and not -(2**63) <= value < 2**63):
        raise Wrong
    if kind in (str, Path) and ("\0" in value or (kind is Path and not value.strip())):
        raise Wrong
    return value


def _annotated(kind: Any, rules: tuple, value: Any, name: str) -> Any:
    for rule in rules:
        if hasattr(rule, "convert"):
            return rule.convert(value, name)
    if any(isinstance(rule, Many) for rule in rules) and not isinstance(value, list):
        value = [value]
    value = _convert(kind, value, name)
    if not all(value in rule for rule in rules):
        raise Wrong
    return value


def _first(kinds: tuple, value: Any, name: str) -> Any:
    """Convert to the first type of a union that takes the value, starting with the value's own type."""
    if value is None and NoneType in kinds:
        return None
    for kind in sorted(kinds, key=lambda kind: type(value) is not kind):
        try:
            if kind is not NoneType:
                return _convert(kind, value, name)
        except Wrong:
            continue
    raise Wrong


def _literal(literals: tuple, value: Any) -> Any:
    for literal in literals:
        try:
            if _leaf(type(literal), value) == literal:
                return literal
        except Wrong:
            continue
    raise Wrong


def section(kind: type, value: Any, name: str) -> Any:
    """Convert a mapping to a dataclass and call its ``validate``.

    Args:
        kind: the dataclass. Fields with a default may be absent; a trailing _ is dropped (``from_``).
        value: the mapping.
        name: of the section, for messages; empty for a whole configuration.

    Raises:
        ValueError: a key is unknown or missing, or a value is not valid.
    """
    if not isinstance(value, Mapping):
        raise Wrong
    hints, prefix = get_type_hints(kind, include_extras=True), f"{name}." if name else ""
    kinds = {field.rstrip("_"): hint for field, hint in hints.items()}
    refuse_unknown(value, kinds, name)
    options = {}
    for field in fields(kind):
        key = field.name.rstrip("_")
        item = value.get(key, ABSENT)
        if item != ABSENT:
            options[field.name] = typed(kinds[key], item, prefix + key)
        elif field.default is MISSING is field.default_factory:
            raise ValueError(f"{prefix}{key} is missing; it must be {expected(kinds[key])}")
    converted = kind(**options)
    if hasattr(converted, "validate"):
        converted.validate()
    return converted


def refuse_unknown(value: Mapping, known: Mapping, name: str, hidden: Mapping = MappingProxyType({})) -> None:
    """Raise ValueError for a key that is not in ``known``; the message lists the known keys except ``hidden``."""
    for key in value:
        if key not in known:
            valid = ", ".join(sorted(known.keys() - hidden.keys())) or "none"
            raise ValueError(
                f"{f'{name}.' if name else ''}{key}: no such key; {name or 'the configuration'} has {valid}"
            )


def plain(value: Any) -> Any:
    """Convert a section back to dicts, without absent fields."""
    if is_dataclass(value):
        value = {field.name.rstrip("_"): getattr(value, field.name) for field in fields(value)}
        return {key: plain(item) for key, item in value.items() if not _absent(item)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def _absent(value: Any) -> bool:
    return isinstance(value, str) and value == ABSENT
