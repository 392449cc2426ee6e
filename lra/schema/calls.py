"""Constructor calls, ``_target_`` with options, which are typed by the constructor's keyword-only arguments.

A positional argument annotated with a dataclass, such as the ``Sizes`` of a mechanism, stands for its fields.
"""

import collections.abc
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Annotated, Any, get_origin, get_type_hints

from hydra.utils import get_object

from .convert import ABSENT, Wrong, refuse_unknown, typed
from .wording import expected, shown

MARKS = {"_target_": str, "_partial_": bool}  # keys of hydra's own


@dataclass(frozen=True, eq=False)
class Call:
    """The mark of a constructor call in an ``Annotated``.

    Args:
        partial: whether the call is completed later, once the rest of its arguments is known.
        given: arguments that are passed at that time and hence are no options.
        also: keys beside the options, with their types.
    """

    partial: bool = True
    given: frozenset[str] = frozenset()
    also: Mapping[str, Any] = field(default_factory=dict)
    text = "a constructor call, _target_ and its options"

    def convert(self, value: Any, name: str) -> dict:
        if not isinstance(value, Mapping) or "_target_" not in value:
            raise Wrong
        if value["_target_"] == ABSENT:  # attn=custom without a class
            return dict(value)
        known, needed = options(target(value["_target_"], name), self.given)
        refuse_unknown(value, known | self.also | MARKS, name, hidden=MARKS | self.also)
        if bool(value.get("_partial_", False)) is not self.partial:
            raise ValueError(f"{name}._partial_ must be {str(self.partial).lower()}")
        if missing := sorted(needed - set(value)) if not self.given else []:
            raise ValueError(f"{name}.{missing[0]} is missing; {name} needs {', '.join(missing)}")
        return {key: self._option(known | self.also | MARKS, key, item, name) for key, item in value.items()}

    def _option(self, kinds: Mapping[str, Any], key: str, value: Any, name: str) -> Any:
        kind = kinds[key]
        if value == ABSENT:
            raise ValueError(f"{name}.{key} is missing; it must be {expected(kind)}")
        if isinstance(value, Mapping) and "_target_" in value:
            kind = Annotated[Any, Call(partial=bool(value.get("_partial_")))]
        elif get_origin(kind) is collections.abc.Callable:
            kind = Annotated[Any, Call()]
        return typed(kind, value, f"{name}.{key}")


def target(path: Any, name: str) -> Any:
    """Import the class or function that ``_target_`` names.

    Args:
        path: the value of ``_target_``.
        name: of the section, for the message.

    Raises:
        ValueError: it cannot be imported or called.
    """
    try:
        function = get_object(path)
    except Exception as error:  # the module is the user's own; its import may raise anything
        reason = " ".join(str(error.__cause__ or error).split())
        raise ValueError(f"{name}._target_={path} cannot be imported: {reason}") from None
    if not callable(function):
        raise ValueError(f"{name}._target_ must name a class or a function, not {shown(path)}")
    return function


def options(target: Any, given: frozenset[str] = frozenset()) -> tuple[dict[str, Any], set[str]]:
    """List the options of a constructor call: its keyword-only arguments, those of base classes included.

    The fields of a dataclass are among them if a positional argument is annotated with it.

    Args:
        target: a class or a function.
        given: arguments to leave out.

    Returns:
        The annotations by name, and the names without a default.
    """
    kinds: dict[str, Any] = {}
    needed: set[str] = set()
    for owner in reversed(inspect.getmro(target)) if inspect.isclass(target) else (target,):
        function = owner.__init__ if inspect.isclass(owner) else owner
        try:
            signature = inspect.signature(function)
        except ValueError:  # of a builtin
            continue
        hints = _hints(function)
        for key, parameter in signature.parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY:
                if key not in given:
                    kinds[key] = hints.get(key, kinds.get(key, Any))
                    needed = needed | {key} if parameter.default is parameter.empty else needed - {key}
            elif is_dataclass(hints.get(key)):
                fields, needed_fields = options(hints[key], given)
                kinds, needed = kinds | fields, needed | needed_fields
    return kinds, needed


def _hints(function: Any) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except Exception:  # an annotation that only a type checker can resolve
        return {}
