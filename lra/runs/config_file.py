"""The config.yaml of a run, read as untrusted input: it holds plain values and names only callables of an allowlist."""

import importlib
import inspect
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from ..data.source import Source
from ..disk.atomic import Unreadable, content
from ..ops import pinv
from .typed_json import verify

NAME = "config.yaml"
SUITE = ("lra", "data_prep")  # packages
MOST = 2**17  # bytes, which PyYAML parses in about a second
_PLAIN = str | int | float | bool | None
_KEY = re.compile(r"[\w-]+(\.[\w-]+)*")  # a[b] would be a.b to OmegaConf
_PATH = re.compile(r"[A-Za-z]\w*(\.[A-Za-z_]\w*)*\.[A-Za-z]\w*")


class _Loader(yaml.SafeLoader):
    """A loader that refuses aliases: a few lines of nested aliases can expand beyond any memory."""

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
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:  # of PyYAML
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        remedy = "delete its folder to run that seed again"
        raise ValueError(f"{path} is not the configuration of a run ({reason}); {remedy}") from None


def _check_plain(choices: Any) -> None:
    """Raise Unreadable unless choices are dotted keys with plain values, or lists of them."""
    if not isinstance(choices, dict):
        raise Unreadable("it is no mapping")
    for key, value in _items(choices):
        plain = isinstance(value, _PLAIN) and not (isinstance(value, int) and value.bit_length() > 63)
        if not plain or not _KEY.fullmatch(key) or "${" in str(value):
            raise Unreadable(f"{key}: {str(value)[:60]} is no plain value")
    for key, value in choices.items():
        owners = [*itertools.accumulate(key.split("."), "{}.{}".format)][:-1]
        if isinstance(value, dict) or not choices.keys().isdisjoint(owners):
            raise Unreadable(f"{key} is in a section that has a value itself")


def check_trust(choices: dict[str, Any], path: Path, trust: str | Iterable[str] | None = None) -> None:
    """Check that a run's choices call only parts of a model, sources and inverses of the suite.

    Args:
        choices: flat.
        path: path of the file, for the message.
        trust: modules outside the suite, all of whose classes and functions may be called.

    Raises:
        ValueError: the choices call something else.
    """
    trust = (trust,) if isinstance(trust, str) else tuple(trust or ())
    for key, value in _items(choices):
        name = key.rpartition(".")[2]
        if name == "_target_":
            _check_target(key, value, path, trust)
        elif any(part.startswith("_") for part in key.split(".")) and (name != "_partial_" or value is not True):
            raise ValueError(f"{path}: {key}: {value} is refused; of such keys a run has _target_ and _partial_: true")


def _items(choices: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value), also of the elements of lists, since hydra instantiates inside lists."""
    if isinstance(choices, dict) and not all(isinstance(key, str) for key in choices):
        raise Unreadable("a key is no text")
    if isinstance(choices, dict | list):
        for key, value in choices.items() if isinstance(choices, dict) else enumerate(choices):
            yield from _items(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, choices


def _check_target(key: str, target: Any, path: Path, trust: tuple[str, ...]) -> None:
    owner, _, name = str(target).rpartition(".")
    if not _PATH.fullmatch(str(target)) or not _inside(owner, (*SUITE, *trust)):
        raise ValueError(
            f"{path}: {key}: {target} is not of this suite; if you know what it does, say trust={owner or '<module>'}"
        )
    try:
        callable_ = getattr(importlib.import_module(owner), name)
    except (ImportError, AttributeError):
        raise ValueError(f"{path}: {key}: there is no {target}") from None
    home = getattr(callable_, "__module__", None)
    kind = inspect.isclass(callable_) or inspect.isfunction(callable_)
    trusted = isinstance(home, str) and _inside(home, trust) and not _inside(home, SUITE) and kind
    part = inspect.isclass(callable_) and issubclass(callable_, nn.Module | Source) and _inside(home, SUITE)
    inverse = inspect.isfunction(callable_) and home == pinv.__name__
    if not (trusted or part or inverse):
        raise ValueError(f"{path}: {key}: {target} is no part of a model, no source and no inverse")


def _inside(module: str, packages: Iterable[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)
