"""Typed values of a configuration: sections are frozen pydantic models, and a wrong value gives a one-line message."""

import functools
import os
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_after_validator_function

from .messages import describe_error

ABSENT = "???"  # a value that the configuration leaves to the command line
STRICT = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())
# Spellings on a command line: no and yes are truth values, 2026 is text where text is wanted, integers have 64 bits.
_SPELLED: dict[str, dict[str, Any]] = {
    "bool": {"strict": False},
    "str": {"strict": False, "coerce_numbers_to_str": True, "pattern": r"^[^\x00]*$"},
    "int": {"ge": -(2**63), "le": 2**63 - 1},
    "lax-or-strict": {"strict": False},  # a path
}


def _spelled(schema: Any) -> Any:
    """Let a strict schema take values as they are spelt on a command line, and expand ~ in paths.

    The schema is changed in place. Rules that it already has stay, except for paths.
    """
    # Rules of this node.
    if isinstance(schema, dict):
        for key, value in _SPELLED.get(str(schema.get("type")), {}).items():
            schema.setdefault(key, value)
        if schema.get("type") == "str" and schema.get("strict"):  # the text of a path
            schema.update(strict=False, coerce_numbers_to_str=True, pattern=r"^[^\x00]*[^\s\x00][^\x00]*$")
            # Expand a leading ~: a shell expands it neither in data.root=~/x nor in the value of LRA_DATA.
            text = dict(schema)
            schema.clear()
            schema.update(no_info_after_validator_function(os.path.expanduser, text))
            return schema
    # Nodes below it.
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _spelled(part)
    return schema


class _Spelled:
    """The mark of an ``Annotated`` type whose values come from a command line."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return _spelled(handler(source))


class Section(BaseModel):
    """Options that belong together. A field with a default may be absent."""

    model_config = STRICT

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return _spelled(handler(source))

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
            ValueError: an option is unknown or missing or does not take its value, or options do not go together.
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
    return TypeAdapter(Annotated[kind, _Spelled()], config=config)


def _present(tree: Any) -> Any:
    """Leave out the keys whose value is ABSENT, except in constructor calls: ``target.parse`` reports those."""
    if isinstance(tree, Mapping) and "_target_" not in tree:
        return {key: _present(value) for key, value in tree.items() if not (isinstance(value, str) and value == ABSENT)}
    return tree
