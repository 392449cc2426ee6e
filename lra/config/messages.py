"""Messages about options of a configuration, from the errors of pydantic; see also ``lra.options.rejection``."""

from collections.abc import Collection, Mapping
from inspect import isclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ValidationError

from ..options import expected, rejection


def describe_error(error: ValidationError, kind: Any, value: Any, name: str) -> str:
    """Describe one error of a validation: an unknown key, else the first error.

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
    return rejection(name, value, kind)


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
