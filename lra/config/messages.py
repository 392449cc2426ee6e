"""The message about a value that an option does not take: the option, the valid values, the given value."""

import json
from collections.abc import Collection, Mapping, Sequence
from inspect import isclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import MinLen
from pydantic import BaseModel, ValidationError

from ..options import Range

# Characters of a value in a message.
MAX_LENGTH = 60
TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}


def describe_error(error: ValidationError, kind: Any, value: Any, name: str) -> str:
    """Describe the first error of a validation.

    Args:
        error: pydantic's errors.
        kind: annotation by which the value was validated.
        value: the value.
        name: name of the option; empty for a whole configuration.
    """
    # An unknown key is reported before the values of other keys.
    details = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    first = details[0]
    # A rule between options, see ``base.Section.check``, has its own message.
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])

    # Follow the error's path through sections and dictionaries to the option.
    for key in first["loc"]:
        bare_kind = _bare(kind)
        if _is_section(bare_kind) and isinstance(value, Mapping):
            kinds = _option_kinds(bare_kind)
            if key not in kinds:
                return unknown_key(str(key), _option_names(bare_kind), name)
            kind = kinds[key]
            name = f"{name}.{key}".lstrip(".")
            if key not in value:
                return f"{name} is missing; it must be {expected(kind)}"
        elif get_origin(bare_kind) is dict and key in value:
            kind = get_args(bare_kind)[1]
            name = f"{name}.{key}"
        else:
            # An item of a list or a union: the message names the whole option.
            break
        value = value[key]
    return f"{name} must be {expected(kind)}, not {format_value(value)}"


def unknown_key(key: str, options: Collection[str], name: str) -> str:
    """Describe a key that a section, or with an empty name the configuration, does not have.

    Args:
        key: the key.
        options: options of the section.
        name: name of the section.
    """
    valid = ", ".join(sorted(options)) or "none"
    if not name:
        return f"{key}: no such key; the configuration has {valid}"
    return f"{name}.{key}: no such key; {name} has {valid}"


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
        return f"a list, each {expected(get_args(kind)[0])}"
    if origin is dict or _is_section(kind):
        return "keys with their values"
    return TYPE_NAMES.get(kind, "given")


def _expected_annotated(kind: Any) -> str:
    """Describe a type with rules: its own description, or the type with its range."""
    base, *rules = get_args(kind)
    descriptions = [rule.description for rule in rules if getattr(rule, "description", None)]
    if descriptions:
        return descriptions[-1]
    if any(isinstance(rule, MinLen) for rule in rules):
        item = get_args(base)[0]
        return f"{expected(item)}, or a list of such"
    ranges = [str(rule) for rule in rules if isinstance(rule, Range)]
    return " ".join([expected(base), *ranges])


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


def _is_section(kind: Any) -> bool:
    return isclass(kind) and issubclass(kind, BaseModel)


def _option_kinds(section: type[BaseModel]) -> dict[str, Any]:
    """The annotations of a section's fields by their names in a configuration."""
    hints = get_type_hints(section, include_extras=True)
    return {field.alias or key: hints[key] for key, field in section.model_fields.items()}


def _option_names(section: type[BaseModel]) -> set[str]:
    """The names that a configuration may use; ``repr=False`` marks fields that are no options."""
    return {field.alias or key for key, field in section.model_fields.items() if field.repr}


def _bare(kind: Any) -> Any:
    """The annotation without its rules and without null."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _bare(get_args(kind)[0])
    if origin in (Union, UnionType):
        parts = [part for part in get_args(kind) if part is not NoneType]
        return _bare(parts[0]) if len(parts) == 1 else kind
    return kind


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def format_value(value: Any) -> str:
    """Format a value as a user types it, cut to ``MAX_LENGTH`` characters; text in quotes."""
    if isinstance(value, str):
        text = repr(value)
    elif value is None or isinstance(value, bool):
        text = json.dumps(value)
    else:
        text = str(value)
    return text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}..."
