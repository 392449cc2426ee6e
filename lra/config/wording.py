"""One line about a value that an option does not take: the option, the valid values, the given one."""

import json
from collections.abc import Mapping, Sequence
from inspect import isclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import MinLen
from pydantic import BaseModel, ValidationError

from ..options import Range

LONGEST = 60  # characters of a value
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}


def refusal(error: ValidationError, kind: Any, value: Any, name: str) -> str:
    """Describe the first error of a validation.

    Args:
        error: pydantic's errors.
        kind: annotation that the value was validated by.
        value: given.
        name: name of the option; empty for a whole configuration.
    """
    # An unknown key is reported before the values of other keys.
    first = min(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    # Follow the error's path through sections and dictionaries to the option.
    for key in first["loc"]:
        bare = _bare(kind)
        if isclass(bare) and issubclass(bare, BaseModel) and isinstance(value, Mapping):
            hints = get_type_hints(bare, include_extras=True)
            kinds = {field.alias or key: hints[key] for key, field in bare.model_fields.items()}
            if key not in kinds:
                options = {field.alias or key for key, field in bare.model_fields.items() if field.repr}
                return no_such_key(key, options, name)
            kind, name = kinds[key], f"{name}.{key}".lstrip(".")
            if key not in value:
                return f"{name} is missing; it must be {expected(kind)}"
        elif get_origin(bare) is dict and key in value:
            kind, name = get_args(bare)[1], f"{name}.{key}"
        else:  # an item of a list or a union: the message names the whole option
            break
        value = value[key]
    return f"{name} must be {expected(kind)}, not {shown(value)}"


def no_such_key(key: str, known: set[str], name: str) -> str:
    """Describe a key that a section, or with an empty name the configuration, does not have."""
    valid = ", ".join(sorted(known)) or "none"
    return f"{f'{name}.' if name else ''}{key}: no such key; {name or 'the configuration'} has {valid}"


def _bare(kind: Any) -> Any:
    """The annotation without its rules and without null."""
    if get_origin(kind) is Annotated:
        return _bare(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        parts = [part for part in get_args(kind) if part is not NoneType]
        return _bare(parts[0]) if len(parts) == 1 else kind
    return kind


def expected(kind: Any) -> str:
    """Describe the values that an option takes, such as "a whole number of 1 or more, or null"."""
    origin = get_origin(kind)
    parts = get_args(kind)
    # An annotation with rules: int, at least 1.
    if origin is Annotated:
        return _annotation(parts[0], parts[1:])
    # A union: its types, then its choices, then null.
    if origin in (Union, UnionType):
        literals = [value for part in parts if get_origin(part) is Literal for value in get_args(part)]
        if literals and bool in parts:
            literals = [True, False, *literals]
            parts = tuple(part for part in parts if part is not bool)
        texts = [expected(p) for p in parts if get_origin(p) is not Literal and p is not NoneType]
        if set(parts) - {NoneType} == {int, float}:
            texts = ["a number"]
        texts = [*texts, *map(_plain, literals)] if texts else [expected(Literal[tuple(literals)])]
        return ", ".join(texts) + (", or null" if NoneType in parts else "")
    # Choices, lists and sections.
    if origin is Literal:
        return f"one of {', '.join(map(_plain, parts))}" if len(parts) > 1 else _plain(parts[0])
    if origin in (list, Sequence):
        return f"a list, each {expected(parts[0])}"
    if origin is dict or (isclass(kind) and issubclass(kind, BaseModel)):
        return "keys with their values"
    return WORDS.get(kind, "given")


def _annotation(kind: Any, rules: tuple) -> str:
    texts = [rule.description for rule in rules if getattr(rule, "description", None)]
    if texts:
        return texts[-1]
    if any(isinstance(rule, MinLen) for rule in rules):
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
