"""Constructor calls: ``_target_`` with options, which are typed by the constructor's keyword-only arguments.

A positional argument annotated with a dataclass, such as the ``Sizes`` of a mechanism, stands for its fields.
"""

import collections.abc
import functools
import importlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, Self, get_origin, get_type_hints

from annotated_types import GroupedMetadata
from pydantic import AfterValidator, PlainSerializer, PlainValidator

from ..options import expected, format_value
from .base import ABSENT, typed, unknown_key

# Hydra's keys.
TARGET = "_target_"
PARTIAL = "_partial_"


@dataclass(frozen=True)
class Target:
    """A class or function with the options of the configuration; a call adds the remaining arguments.

    Args:
        path: dotted name of the function.
        function: the class or function itself; None if the command line is still to name one (``attn=custom``).
        options: keyword arguments, typed; a value may be another target.
        partial: True if further arguments are needed, which are known later.
    """

    path: str
    function: Any
    options: Mapping[str, Any]
    partial: bool = True

    @property
    def factory(self) -> functools.partial:
        """The function with its options. Nested targets are called, or become factories too if they are partial."""
        options = {}
        for key, value in self.options.items():
            options[key] = value.build() if isinstance(value, Target) else value
        return functools.partial(self.function, **options)

    def build(self) -> Any:
        """The factory of a partial target, else the result of the call."""
        return self.factory if self.partial else self()

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.factory(*arguments, **options)

    def get(self, option: str, default: Any = None) -> Any:
        """The value of an option, or the default if the target does not have the option."""
        return self.options.get(option, default)

    def replace(self, **options: Any) -> Self:
        """The target with further or other values of options."""
        return replace(self, options={**self.options, **options})

    def to_dict(self) -> dict[str, Any]:
        """The target as a tree of plain values."""
        tree: dict[str, Any] = {TARGET: self.path}
        if self.partial:
            tree[PARTIAL] = True
        for key, value in self.options.items():
            tree[key] = value.to_dict() if isinstance(value, Target) else value
        return tree


def parse(tree: Any, *, name: str, partial: bool = True, passed: Collection[str] = (), extra: Mapping = {}) -> Target:
    """Convert a tree of plain values to a target.

    Args:
        tree: ``_target_`` and options.
        name: name of the section, for messages.
        partial: True if the call is completed later, once the rest of its arguments is known.
        passed: arguments that are passed at that time, so they are not options.
        extra: options that the function does not take, with their types.

    Raises:
        ValueError: the target cannot be imported, ``_partial_`` is not ``partial``, or an option is unknown or does not
            take its value. A missing option is reported only if ``passed`` is empty.
    """
    if not isinstance(tree, Mapping) or TARGET not in tree:
        raise ValueError(f"{name} must have _target_, the class to call, and its options, not {format_value(tree)}")
    arguments = {key: value for key, value in tree.items() if key not in (TARGET, PARTIAL)}
    path = tree[TARGET]
    # attn=custom without a class: the command line has to name it.
    if path == ABSENT:
        return Target(ABSENT, None, arguments)

    # Options are the keyword-only arguments of the function, unless they are passed later.
    function = import_target(path, name)
    kinds, required = options_of(function, passed)
    for key in arguments:
        if key not in kinds and key not in extra:
            raise ValueError(unknown_key(key, kinds.keys(), name))
    is_partial = typed(bool, tree.get(PARTIAL, False), f"{name}.{PARTIAL}")
    if is_partial is not partial:
        raise ValueError(f"{name}.{PARTIAL} must be {str(partial).lower()}")
    missing = sorted(required - arguments.keys())
    if missing and not passed:
        raise ValueError(f"{name}.{missing[0]} is missing; {name} needs {', '.join(missing)}")

    # Each value gets the type of its option.
    kinds = {**extra, **kinds}
    options = {key: _option(kinds[key], value, f"{name}.{key}") for key, value in arguments.items()}
    return Target(path, function, options, partial)


def _option(kind: Any, value: Any, name: str) -> Any:
    """Convert the value of an option."""
    if isinstance(value, str) and value == ABSENT:
        raise ValueError(f"{name} is missing; it must be {expected(kind)}")
    # A nested target, such as attn.pinv.
    if isinstance(value, Mapping) and TARGET in value:
        is_partial = bool(value.get(PARTIAL))
        return parse(value, name=name, partial=is_partial)
    if get_origin(kind) is collections.abc.Callable:
        return parse(value, name=name)
    converted = typed(kind, value, name)
    # A path stays as it was written, for config.yaml.
    return str(value) if isinstance(converted, Path) else converted


class Constructor(GroupedMetadata):
    """The metadata of an ``Annotated[Target, ...]``: a section that is a target.

    Args:
        name: name of the section.
        rules: further arguments of ``parse``.
    """

    def __init__(self, name: str, **rules: Any):
        self.convert = functools.partial(parse, name=name, **rules)

    def __iter__(self) -> Iterator[object]:
        yield PlainValidator(self.convert)
        yield PlainSerializer(Target.to_dict)


class Constructors(GroupedMetadata):
    """The metadata of an ``Annotated[dict[str, Any], ...]``: a section of several targets, each with its own name."""

    def __init__(self, name: str, **rules: Any):
        self.name = name
        self.rules = rules

    def __iter__(self) -> Iterator[object]:
        yield AfterValidator(self.convert)
        yield PlainSerializer(self.to_dict)

    def convert(self, tree: dict[str, Any]) -> dict[str, Target]:
        return {key: parse(value, name=f"{self.name}.{key}", **self.rules) for key, value in tree.items()}

    def to_dict(self, targets: dict[str, Target]) -> dict[str, Any]:
        return {key: target.to_dict() for key, target in targets.items()}


def import_target(path: Any, name: str) -> Any:
    """Import the class or function that ``_target_`` names.

    Args:
        path: the value of ``_target_``.
        name: name of the section, for the message.

    Raises:
        ValueError: it cannot be imported or called.
    """
    owner, _, attribute = path.rpartition(".") if isinstance(path, str) else ("", "", "")
    if not owner:
        raise ValueError(f"{name}._target_ must be <module>.<class>, not {format_value(path)}")
    try:
        module = importlib.import_module(owner)
        function = getattr(module, attribute)
    # The module may be the user's own; its import may raise anything.
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{name}._target_={path} cannot be imported: {reason}") from None
    if not callable(function):
        raise ValueError(f"{name}._target_ must name a class or a function, not {format_value(path)}")
    return function


def options_of(function: Callable, passed: Collection[str] = ()) -> tuple[dict[str, Any], set[str]]:
    """List the options of a class or function: its keyword-only arguments, including base classes.

    The fields of a dataclass are among them if a positional argument is annotated with it.

    Args:
        function: class or function.
        passed: arguments to leave out.

    Returns:
        The annotations by name, and the names without a default.
    """
    kinds: dict[str, Any] = {}
    required: set[str] = set()
    # Base classes come first, so that a class replaces the annotations of its bases.
    for definition in _definitions(function):
        parameters, hints = _signature(definition)
        for key, parameter in parameters.items():
            if parameter.kind is not parameter.KEYWORD_ONLY:
                # A dataclass stands for its fields.
                if is_dataclass(hints.get(key)):
                    fields, required_fields = options_of(hints[key], passed)
                    kinds |= fields
                    required |= required_fields
                continue
            if key in passed:
                continue
            kinds[key] = hints.get(key, kinds.get(key, Any))
            if parameter.default is parameter.empty:
                required.add(key)
            else:
                required.discard(key)
    return kinds, required


def _definitions(function: Callable) -> list[Callable]:
    """The function itself, or the ``__init__`` of a class and of its bases, from the base class down."""
    if not inspect.isclass(function):
        return [function]
    owners: list[Any] = list(inspect.getmro(function))
    return [owner.__init__ for owner in reversed(owners)]


@functools.cache
def _signature(function: Callable) -> tuple[Mapping[str, inspect.Parameter], dict[str, Any]]:
    """The parameters of a function and their annotations; none for a builtin, which has no signature."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        return {}, {}
    try:
        return parameters, get_type_hints(function, include_extras=True)
    # An annotation that only a type checker can resolve.
    except Exception:
        return parameters, {}
