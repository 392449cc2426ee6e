"""The config.yaml of a run: its choices, their fingerprint, and how the file is read as untrusted input.

The file holds plain values by dotted keys. Callables that it names must be on an allowlist.
"""

import hashlib
import importlib
import inspect
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from ..data.source import Source
from ..disk.atomic import Unreadable, content
from ..disk.typed_json import verify
from ..ops import newton, pinv

NAME = "config.yaml"
# Packages of the suite.
SUITE = ("lra", "data_prep")
# Modules of the functions that invert CUR's and SOFT's inner matrix.
INVERSES = (pinv.__name__, newton.__name__)
# Largest file in bytes; PyYAML parses it in about a second.
MOST = 2**17
_PLAIN_TYPES = str | int | float | bool | None
# Dotted keys. OmegaConf would read a[b] as a.b.
_KEY = re.compile(r"[\w-]+(\.[\w-]+)*")
# Dotted paths of callables.
_PATH = re.compile(r"[A-Za-z]\w*(\.[A-Za-z_]\w*)*\.[A-Za-z]\w*")


def fingerprint(choices: dict) -> str:
    """Identify a run by its choices, flat and with the seed: 16 hexadecimal digits of the SHA-256 of their JSON."""
    text = json.dumps(choices, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def difference(old: dict, new: dict) -> str:
    """List every choice that differs as ``key: old -> new``; empty if none does."""
    keys = sorted(key for key in old | new if old.get(key, ...) != new.get(key, ...))
    return "; ".join(f"{key}: {old.get(key)} -> {new.get(key)}" for key in keys)


class _Loader(yaml.SafeLoader):
    """A loader that rejects aliases: a few lines of nested aliases can expand beyond any memory."""

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            raise Unreadable("it has an alias")
        return super().compose_node(parent, index)


def read(path: Path) -> dict[str, Any]:
    """Read the flat choices of a run. Raises ValueError for a file that does not hold any."""
    try:
        verify(path)
        choices = yaml.load(content(path, MOST), _Loader)
        _check_plain(choices)
        return choices
    # PyYAML raises exceptions of these classes for files that are not YAML.
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        remedy = "delete its folder to run that seed again"
        raise ValueError(f"{path} is not the configuration of a run ({reason}); {remedy}") from None


def dump(choices: dict[str, Any]) -> str:
    """Format flat choices as the text of a config.yaml."""
    # PyYAML writes a list that occurs twice as an alias; the copy has no object twice.
    copy = json.loads(json.dumps(choices))
    return yaml.safe_dump(copy)


def _check_plain(choices: Any) -> None:
    """Raise Unreadable unless choices are dotted keys with plain values, or lists of them."""
    if not isinstance(choices, dict):
        raise Unreadable("it is no mapping")
    for key, value in _items(choices):
        is_huge = isinstance(value, int) and value.bit_length() > 63
        is_plain = isinstance(value, _PLAIN_TYPES) and not is_huge
        if not is_plain or not _KEY.fullmatch(key) or "${" in str(value):
            raise Unreadable(f"{key}: {str(value)[:60]} is no plain value")
    for key, value in choices.items():
        # The sections of a.b.c are a and a.b.
        *sections, _ = itertools.accumulate(key.split("."), "{}.{}".format)
        if isinstance(value, dict) or not choices.keys().isdisjoint(sections):
            raise Unreadable(f"{key} is in a section that has a value itself")


def check_trust(choices: dict[str, Any], path: Path, trust: str | Iterable[str] | None = None) -> None:
    """Check that a run's choices call only parts of a model, sources and inverses of the suite.

    Args:
        choices: flat choices.
        path: path of the file, for the message.
        trust: modules outside the suite, all of whose classes and functions may be called.

    Raises:
        ValueError: the choices call something else.
    """
    trusted_modules = (trust,) if isinstance(trust, str) else tuple(trust or ())
    for key, value in _items(choices):
        name = key.rpartition(".")[2]
        is_partial = name == "_partial_" and value is True
        if name == "_target_":
            _check_target(key, value, path, trusted_modules)
        # Other keys of hydra, such as _args_, could call anything.
        elif any(part.startswith("_") for part in key.split(".")) and not is_partial:
            raise ValueError(f"{path}: {key}: {value} is rejected; of such keys a run has _target_ and _partial_: true")


def _items(choices: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value), also of the elements of lists, since hydra instantiates inside lists."""
    if isinstance(choices, dict):
        if not all(isinstance(key, str) for key in choices):
            raise Unreadable("a key is no text")
        children = choices.items()
    elif isinstance(choices, list):
        children = enumerate(choices)
    else:
        yield prefix, choices
        return
    for key, value in children:
        yield from _items(value, f"{prefix}.{key}" if prefix else str(key))


def _check_target(key: str, target: Any, path: Path, trusted_modules: tuple[str, ...]) -> None:
    """Raise ValueError unless a ``_target_`` is a part of a model, a source, an inverse, or trusted."""
    module, _, name = str(target).rpartition(".")
    if not _PATH.fullmatch(str(target)) or not _is_inside(module, (*SUITE, *trusted_modules)):
        raise ValueError(
            f"{path}: {key}: {target} is not of this suite; if you know what it does, say trust={module or '<module>'}"
        )
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        raise ValueError(f"{path}: {key}: there is no {target}") from None

    # A module can import anything, so the module that defines the callable decides.
    home = getattr(function, "__module__", None)
    is_class = inspect.isclass(function)
    is_function = inspect.isfunction(function)
    in_trusted = isinstance(home, str) and _is_inside(home, trusted_modules) and not _is_inside(home, SUITE)
    is_trusted = in_trusted and (is_class or is_function)
    is_part = is_class and issubclass(function, nn.Module | Source) and _is_inside(home, SUITE)
    is_inverse = is_function and home in INVERSES
    if not (is_trusted or is_part or is_inverse):
        raise ValueError(f"{path}: {key}: {target} is no part of a model, no source and no inverse")


def _is_inside(module: str, packages: Iterable[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)
