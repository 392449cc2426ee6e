"""Constructor calls, ``_target_`` with options, which are typed by the constructor's keyword-only arguments.

A positional argument annotated with a dataclass, such as the ``Sizes`` of a mechanism, stands for its fields.
"""

import collections.abc
import functools
import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

from pydantic import AfterValidator, PlainSerializer, PlainValidator

from .section import ABSENT, typed
from .wording import expected, no_such_key, shown

TARGET, PARTIAL = "_target_", "_partial_"  # keys of hydra's own


@dataclass(frozen=True)
class Call:
    """A class or function with options. To call it passes the options on, with the other arguments.

    Args:
        path: dotted name of the function.
        function: the class or function itself; None if the command line is still to name one (``attn=custom``).
        options: keyword arguments, typed; a value may be another call.
        partial: True if further arguments are needed, which are known later.
    """

    path: str
    function: Callable | None
    options: Mapping[str, Any]
    partial: bool = True

    @property
    def factory(self) -> functools.partial:
        """The function with its options; nested calls are made, or made factories too if they are partial."""
        options = {key: _built(value) if isinstance(value, Call) else value for key, value in self.options.items()}
        return functools.partial(self.function, **options)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.factory(*arguments, **options)

    def get(self, option: str, default: Any = None) -> Any:
        """The value of an option, or the default if the call does not have the option."""
        return self.options.get(option, default)

    def replace(self, **options: Any) -> "Call":
        """The call with further or other values of options."""
        return replace(self, options={**self.options, **options})

    def to_dict(self) -> dict[str, Any]:
        """The call as a tree of plain values."""
        options = {key: value.to_dict() if isinstance(value, Call) else value for key, value in self.options.items()}
        return {TARGET: self.path, **({PARTIAL: True} if self.partial else {}), **options}


def _built(call: Call) -> Any:
    return call.factory if call.partial else call()


def parse(value: Any, *, name: str, partial: bool = True, given: Collection[str] = (), also: Mapping = {}) -> Call:
    """Convert a tree to a call.

    Args:
        value: plain, with ``_target_`` and options.
        name: name of the section, for messages.
        partial: True if the call is completed later, once the rest of its arguments is known.
        given: arguments that are passed at that time, so that they are no options.
        also: options that the function does not take, with their types.

    Raises:
        ValueError: the target cannot be imported, or an option is unknown or missing or does not take its value.
    """
    # The function, and what is given for its arguments.
    if not isinstance(value, Mapping) or TARGET not in value:
        raise ValueError(f"{name} must be a constructor call, _target_ and its options, not {shown(value)}")
    arguments = {key: item for key, item in value.items() if key not in (TARGET, PARTIAL)}
    if value[TARGET] == ABSENT:  # attn=custom
        return Call(ABSENT, None, arguments)

    # Options: keyword-only arguments of the function, unless they are passed later.
    function = target(value[TARGET], name)
    kinds, required = options(function, given)
    for key in arguments:
        if key not in kinds and key not in also:
            raise ValueError(no_such_key(key, kinds.keys(), name))
    if typed(bool, value.get(PARTIAL, False), f"{name}.{PARTIAL}") is not partial:
        raise ValueError(f"{name}.{PARTIAL} must be {str(partial).lower()}")
    missing = sorted(required - arguments.keys())
    if missing and not given:
        raise ValueError(f"{name}.{missing[0]} is missing; {name} needs {', '.join(missing)}")

    # A value of each option's own type.
    kinds = {**also, **kinds}
    values = {key: _option(kinds[key], item, f"{name}.{key}") for key, item in arguments.items()}
    return Call(value[TARGET], function, values, partial)


def _option(kind: Any, value: Any, name: str) -> Any:
    if isinstance(value, str) and value == ABSENT:
        raise ValueError(f"{name} is missing; it must be {expected(kind)}")
    # A nested call, such as attn.pinv.
    if isinstance(value, Mapping) and TARGET in value:
        return parse(value, name=name, partial=bool(value.get(PARTIAL)))
    if get_origin(kind) is collections.abc.Callable:
        return parse(value, name=name)
    converted = typed(kind, value, name)
    # A path is a choice as it was written.
    return str(value) if isinstance(converted, Path) else converted


def constructor(name: str, **rules: Any) -> Any:
    """The annotation of a section that is a call.

    Args:
        name: name of the section.
        rules: further arguments of ``parse``.
    """
    return Annotated[Call, PlainValidator(functools.partial(parse, name=name, **rules)), PlainSerializer(Call.to_dict)]


def constructors(name: str, **rules: Any) -> Any:
    """The annotation of a section of several calls, each with its own name."""
    convert = lambda tree: {key: parse(item, name=f"{name}.{key}", **rules) for key, item in tree.items()}
    plain = lambda calls: {key: call.to_dict() for key, call in calls.items()}
    return Annotated[dict[str, Any], AfterValidator(convert), PlainSerializer(plain)]


def target(path: Any, name: str) -> Any:
    """Import the class or function that ``_target_`` names.

    Args:
        path: the value of ``_target_``.
        name: name of the section, for the message.

    Raises:
        ValueError: it cannot be imported or called.
    """
    try:
        owner, _, attribute = path.rpartition(".")
        function = getattr(importlib.import_module(owner), attribute)
    except Exception as error:  # the module is the user's own; its import may raise anything
        reason = " ".join(str(error).split())
        raise ValueError(f"{name}._target_={path} cannot be imported: {reason}") from None
    if not callable(function):
        raise ValueError(f"{name}._target_ must name a class or a function, not {shown(path)}")
    return function


def options(target: Any, given: Collection[str] = ()) -> tuple[dict[str, Any], set[str]]:
    """List the options of a constructor call: its keyword-only arguments, including base classes.

    The fields of a dataclass are among them if a positional argument is annotated with it.

    Args:
        target: a class or a function.
        given: arguments to leave out.

    Returns:
        The annotations by name, and the names without a default.
    """
    kinds: dict[str, Any] = {}
    required: set[str] = set()
    # From the base class down, so that a class replaces the annotations of its bases.
    for owner in reversed(inspect.getmro(target)) if inspect.isclass(target) else (target,):
        function = owner.__init__ if inspect.isclass(owner) else owner
        try:
            signature = inspect.signature(function)
        except ValueError:  # a builtin has none
            continue
        hints = _hints(function)
        for key, parameter in signature.parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY:
                if key not in given:
                    kinds[key] = hints.get(key, kinds.get(key, Any))
                    required = required | {key} if parameter.default is parameter.empty else required - {key}
            elif is_dataclass(hints.get(key)):
                fields, required_fields = options(hints[key], given)
                kinds |= fields
                required |= required_fields
    return kinds, required


def _hints(function: Any) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except Exception:  # an annotation that only a type checker can resolve
        return {}
