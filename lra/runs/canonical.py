"""The canonical form of a run's choices: what stays the same when code moves and when options are added.

Fingerprints are made of it, and two configurations are the same if it is. ``config.yaml`` holds the choices in full.
"""

from collections.abc import Mapping
from typing import Any

SUITE = ("lra", "data_prep")  # packages whose classes and functions go by their bare names, which are unique
_TARGET = "_target_"

# For every option that was added, or taken away, while there were runs without it: the value that they had in effect.
# Keys are "CUR.impl" for an option of a class or function of the suite and "optim.eps" for a key of a section. Without
# a line here, an option that is added to conf makes each earlier run the run of another configuration.
WITHOUT: dict[str, Any] = {
    "model.positions": "learned",
    "GLU.activation": "full_glu",
    "S4D.step_rate": None,
}


def canonical(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Reduce flat choices to what decides a result, whichever version of the suite wrote them.

    Args:
        choices: dotted keys and plain values, as in ``config.yaml``.

    Returns:
        The choices with bare names for targets of the suite, full paths for those of other packages, and without the
        options that have their value of ``WITHOUT``.
    """
    targets, made = _targets(choices), {}
    for key, value in choices.items():
        section, _, option = key.rpartition(".")
        owner = targets.get(section, section)
        if _is_target(key):
            made[key] = owner
        elif not _same(value, WITHOUT.get(f"{owner}.{option}", _NOTHING)):
            made[key] = value
    return made


def completed(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Add the options of ``WITHOUT`` that the choices of an earlier version lack.

    Args:
        choices: dotted keys and plain values, as in ``config.yaml``.
    """
    targets, made = _targets(choices), dict(choices)
    for key, value in WITHOUT.items():
        owner, _, option = key.rpartition(".")
        sections = [section for section, name in targets.items() if name == owner]
        if any(name.startswith(f"{owner}.") for name in choices):
            sections.append(owner)
        for section in sections:
            made.setdefault(f"{section}.{option}", value)
    return made


def bare_name(target: Any) -> str:
    """The name of a class or function of the suite, and the full path of any other one."""
    package, _, rest = str(target).partition(".")
    return rest.rpartition(".")[2] if package in SUITE else str(target)


_NOTHING = object()


def _targets(choices: Mapping[str, Any]) -> dict[str, str]:
    """Section -> name of the class or function that it calls."""
    return {key.rpartition(".")[0]: bare_name(value) for key, value in choices.items() if _is_target(key)}


def _is_target(key: str) -> bool:
    return key.rpartition(".")[2] == _TARGET


def _same(one: Any, other: Any) -> bool:
    """Whether two values are the same in JSON, where 1 is neither true nor 1.0."""
    return type(one) is type(other) and one == other
