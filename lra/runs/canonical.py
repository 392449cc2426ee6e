"""The canonical form of a run's choices, which neither moved code nor added options change.

Fingerprints are digests of it, and two configurations are equal if their canonical forms are. ``config.yaml`` holds
the choices in full.
"""

from collections.abc import Mapping
from typing import Any

SUITE = ("lra", "data_prep")  # packages whose classes and functions go by their bare names, which are unique
_TARGET = "_target_"

# For every option that was added or removed after runs had been made without it: the value that was in effect in them.
# Keys are "CUR.impl" for an option of a class or function of the suite and "optim.eps" for a key of a section. An
# option that is added to conf without a line here makes each earlier run the run of another configuration.
WITHOUT: dict[str, Any] = {
    "ListOps.max_args": 10,
    "ListOps.max_depth": 10,
    "model.embed_std": 0.02,
    "model.positions": "learned",
    "optim.own_lr_max": None,
    "pretrain.objective": "none",
    "SDPA.causal": False,
    "Linear.causal": False,
    "GLU.activation": "full_glu",
    "S4D.step_rate": None,
    "S4D.c_rate": None,
    "GLU.gelu": "exact",
    "GLU.momentum": 0.1,
    "GLU.mixer_dropout": False,
    "model.init": "torch",
    "optim.bias_decay": True,
    "optim.cosine": None,
}


def canonical(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Reduce flat choices to those that decide a result, for choices of any version of the suite.

    Args:
        choices: dotted keys and plain values, as in ``config.yaml``.

    Returns:
        The choices with bare names for targets of the suite, full paths for those of other packages, and without the
        options that have their value of ``WITHOUT``.
    """
    targets, reduced = _targets(choices), {}
    for key, value in choices.items():
        section, _, option = key.rpartition(".")
        owner = targets.get(section, section)
        if _is_target(key):
            reduced[key] = owner
        elif not _same(value, WITHOUT.get(f"{owner}.{option}", _NOTHING)):
            reduced[key] = value
    return reduced


def completed(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Add the options of ``WITHOUT`` that the choices of an earlier version lack.

    Args:
        choices: dotted keys and plain values, as in ``config.yaml``.

    Returns:
        The choices with the values of ``WITHOUT`` for the options that they lack.
    """
    targets, full = _targets(choices), dict(choices)
    for key, value in WITHOUT.items():
        owner, _, option = key.rpartition(".")
        sections = [section for section, name in targets.items() if name == owner]
        if any(name.startswith(f"{owner}.") for name in choices):
            sections.append(owner)
        for section in sections:
            full.setdefault(f"{section}.{option}", value)
    return full


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
