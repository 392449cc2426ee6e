"""Typed values of a configuration: sections are frozen pydantic models, and a wrong value gives a one-line message."""

import difflib
import functools
import os
from collections.abc import Collection, Mapping
from inspect import isclass
from types import NoneType, UnionType
from typing import Annotated, Any, Self, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_after_validator_function

from ..options import expected, rejection

ABSENT = "???"  # a value that the configuration leaves to the command line
STRICT = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())
# Spellings on a command line: no and yes are truth values, 2026 is text where text is wanted, integers have 64 bits.
_COMMAND_LINE_RULES: dict[str, dict[str, Any]] = {
    "bool": {"strict": False},
    "str": {"strict": False, "coerce_numbers_to_str": True},
    "int": {"ge": -(2**63), "le": 2**63 - 1},
    "lax-or-strict": {"strict": False},  # a path
}


def _accept_command_line_text(schema: Any) -> Any:
    """Let a strict schema take values as they are spelt on a command line, and expand ~ in paths.

    The schema is changed in place. Rules that it already has stay, except for paths.
    """
    # Rules of this node.
    if isinstance(schema, dict):
        for key, value in _COMMAND_LINE_RULES.get(str(schema.get("type")), {}).items():
            schema.setdefault(key, value)
        # Text that is still strict is the text of a path, which pydantic itself makes strict.
        is_path_text = schema.get("type") == "str" and schema.get("strict")
        if is_path_text:
            schema.update(strict=False, pattern=r"\S")
            # Expand a leading ~: a shell expands it neither in data.root=~/x nor in the value of LRA_DATA.
            text = dict(schema)
            schema.clear()
            schema.update(no_info_after_validator_function(os.path.expanduser, text))
            return schema
    # Nodes below it.
    children: Collection[Any] = ()
    if isinstance(schema, dict):
        children = schema.values()
    elif isinstance(schema, list):
        children = schema
    for child in children:
        _accept_command_line_text(child)
    return schema


class _FromCommandLine:
    """The mark of an ``Annotated`` type whose values come from a command line."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return _accept_command_line_text(handler(source))


class Section(BaseModel):
    """Options that belong together. A field with a default may be absent."""

    model_config = STRICT

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return _accept_command_line_text(handler(source))

    def check(self) -> None:
        """Raise ValueError if options do not go together."""

    def model_post_init(self, context: Any) -> None:
        self.check()

    @classmethod
    def parse(cls, tree: Mapping[str, Any]) -> Self:
        """Convert a whole configuration.

        Args:
            tree: plain values.

        Raises:
            ValueError: an option is unknown or missing or has an invalid value, or options do not go together.
        """
        tree = _present(tree)
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            raise ValueError(describe_error(error, cls, tree, "")) from None

    def resolve(self) -> Self:
        """The section with values that follow from several options."""
        return self

    def replace(self, **options: Any) -> Self:
        """The section with other values of options. Raises ValueError if they do not go together."""
        section = self.model_copy(update=options)
        section.check()
        return section

    def to_dict(self) -> dict[str, Any]:
        """The tree of the values that were given, each of a type that JSON has."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


def typed(kind: Any, value: Any, name: str) -> Any:
    """Convert the value of an option.

    Args:
        kind: an annotation.
        value: plain.
        name: name of the option, for the message.

    Raises:
        ValueError: the option does not take the value; the message names the option, the valid values and this one.
    """
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        raise ValueError(describe_error(error, kind, value, name)) from None


@functools.cache
def _adapter(kind: Any) -> TypeAdapter:
    config = ConfigDict(**STRICT, arbitrary_types_allowed=True)
    return TypeAdapter(Annotated[kind, _FromCommandLine()], config=config)


def _present(tree: Any) -> Any:
    """Leave out the keys whose value is ABSENT, except in constructor calls: ``target.parse`` reports those."""
    if isinstance(tree, Mapping) and "_target_" not in tree:
        return {key: _present(value) for key, value in tree.items() if not (isinstance(value, str) and value == ABSENT)}
    return tree


def describe_error(error: ValidationError, kind: Any, value: Any, name: str) -> str:
    """Describe one of pydantic's errors: an unknown key, else the first error; see also ``lra.options.rejection``.

    Args:
        error: pydantic's errors.
        kind: annotation by which the value was validated.
        value: the value.
        name: name of the option; empty for a whole configuration.
    """
    # An unknown key is reported before the values of other keys.
    details = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    first = details[0]
    # A rule between options, see ``Section.check``, has its own message.
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
    matches = difflib.get_close_matches(key, options, n=1)
    hint = f"did you mean {matches[0]}? " if matches else ""
    if not name:
        return f"{key}: no such key; {hint}the configuration has {valid}"
    return f"{name}.{key}: no such key; {hint}{name} has {valid}"


def _is_section(kind: Any) -> bool:
    return isclass(kind) and issubclass(kind, BaseModel)


def _option_kinds(section: type[BaseModel]) -> dict[str, Any]:
    """The annotations of a section's fields by their names in a configuration."""
    hints = get_type_hints(section, include_extras=True)
    return {field.alias or key: hints[key] for key, field in section.model_fields.items()}


def _option_names(section: type[BaseModel]) -> set[str]:
    """The names that a configuration may use; ``repr=False`` marks fields that are not options."""
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
