"""The config.yaml of a run: its choices, their fingerprint, and how the file is read as untrusted input.

The file holds plain values by dotted keys. Callables that it names must be on an allowlist.
"""

import functools
import hashlib
import importlib
import inspect
import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from torch import nn

from ..console import first_line
from ..data.source import Source
from ..io import atomic
from ..io.atomic import Unreadable, content
from ..io.typed_json import DamagedRecord, verify
from ..ops import newton, pinv

NAME = "config.yaml"
# Packages of the suite.
SUITE = ("lra", "data_prep")
# Modules of the functions that invert the inner matrix of CUR, Nystromformer and SOFT.
INVERSES = (pinv.__name__, newton.__name__)
# Modules outside the suite whose classes and functions a config.yaml may name.
TrustedModules = str | Iterable[str] | None
_PLAIN_TYPES = str | int | float | bool | None
# Dotted keys of options. OmegaConf would read a[b] as a.b.
_KEY = re.compile(r"[\w-]+(\.[\w-]+)*")
# Keys that describe the data. They may hold names of the user's files, and no option is read from them.
_PROVENANCE = "provenance."
# Dotted paths of callables.
_PATH = re.compile(r"[A-Za-z]\w*(\.[A-Za-z_]\w*)*\.[A-Za-z]\w*")


def fingerprint(choices: dict) -> str:
    """Identify a run by its choices, flat and with the seed: 16 hexadecimal digits of the SHA-256 of their JSON."""
    text = json.dumps(choices, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def difference(old: dict, new: dict) -> str:
    """List every choice that differs as ``key: old -> new``, a missing one as ``absent``; empty if none does."""
    keys = sorted(differing_keys(old, new))
    changes = [f"{key}: {old.get(key, 'absent')} -> {new.get(key, 'absent')}" for key in keys]
    return "; ".join(changes)


def differing_keys(old: dict, new: dict) -> set[str]:
    """The keys with different values, as in the fingerprint: 1 differs from 1.0, and a missing key from null."""
    return {key for key in old | new if _value_text(old, key) != _value_text(new, key)}


def _value_text(choices: dict, key: str) -> str:
    """The text of a choice in the fingerprint; empty for a missing one."""
    return json.dumps(choices[key], sort_keys=True) if key in choices else ""


def read(path: Path) -> dict[str, Any]:
    """Read the flat choices of a run. Raises ValueError for a file that does not hold any."""
    try:
        verify(path)
        choices = yaml.safe_load(content(path))
        _check_plain(choices)
        return choices
    # Re-raise: the message already names the damaged file, which is the record.
    except DamagedRecord:
        raise
    # PyYAML and the check raise exceptions of these classes for files that are not YAML, are nested too deeply, or
    # hold a list that contains itself.
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        remedy = "delete its folder to run that seed again"
        raise ValueError(f"{path} is not the configuration of a run ({reason}); {remedy}") from None


def check(folder: Path, choices: dict[str, Any], *, remedy: str, ignored: Collection[str] = ()) -> None:
    """Check that the ``config.yaml`` of a run directory, if there is one, holds exactly these choices.

    Args:
        folder: the run directory.
        choices: flat choices.
        remedy: end of the message.
        ignored: keys of choices that may differ.

    Raises:
        ValueError: a choice differs, or the file cannot be read.
    """
    path = folder / NAME
    if not path.exists():
        return
    old = {key: value for key, value in read(path).items() if key not in ignored}
    new = {key: value for key, value in choices.items() if key not in ignored}
    changes = difference(old, new)
    if changes:
        raise ValueError(f"{folder} was made by another configuration ({changes}), see its config.yaml; {remedy}")


def dump(choices: dict[str, Any]) -> str:
    """Format flat choices as the text of a config.yaml."""
    # PyYAML writes a list that occurs twice as an alias; the copy has no object twice.
    copy = json.loads(json.dumps(choices))
    return yaml.safe_dump(copy)


def _check_plain(choices: Any) -> None:
    """Raise Unreadable unless choices are a mapping from dotted keys to plain values."""
    if not isinstance(choices, dict):
        raise Unreadable("it is not a mapping")
    for key, value in _items(choices):
        text = str(value)
        is_plain = isinstance(value, _PLAIN_TYPES) and "${" not in text
        is_key = key.startswith(_PROVENANCE) or _KEY.fullmatch(key)
        if not is_plain or not is_key:
            raise Unreadable(f"{key}: {text[:60]} is not a plain value")


def check_trust(choices: dict[str, Any], path: Path, trust: TrustedModules = None) -> None:
    """Check that a run's choices call only the suite's own model parts, sources and inverses, or trusted modules.

    Args:
        choices: flat choices.
        path: path of the file, for the message.
        trust: modules outside the suite, all of whose classes and functions may be called.

    Raises:
        ValueError: the choices call something else.
    """
    trusted_modules = (trust,) if isinstance(trust, str) else tuple(trust or ())
    for key, value in _items(choices):
        names = key.split(".")
        if names[-1] == "_target_":
            _check_target(key, value, path, trusted_modules)
            continue
        # Other keys of Hydra, such as _args_, could call anything.
        is_hydra_key = any(name.startswith("_") for name in names) and not key.startswith(_PROVENANCE)
        is_partial = names[-1] == "_partial_" and value is True
        if is_hydra_key and not is_partial:
            allowed = "of keys with an underscore in front, only _target_ and _partial_: true are"
            raise ValueError(f"{path}: {key}: {value} is not allowed; {allowed}")


def _items(choices: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value), also of the elements of lists, since hydra instantiates inside lists."""
    if isinstance(choices, dict):
        children: Iterable[tuple[Any, Any]] = choices.items()
    elif isinstance(choices, list):
        children = enumerate(choices)
    else:
        yield prefix, choices
        return
    for key, value in children:
        yield from _items(value, f"{prefix}.{key}" if prefix else str(key))


def _check_target(key: str, target: Any, path: Path, trusted_modules: tuple[str, ...]) -> None:
    """Raise ValueError unless a ``_target_`` is a part of a model, a source, an inverse, or trusted."""
    dotted_path = str(target)
    module_name, _, name = dotted_path.rpartition(".")
    if not _PATH.fullmatch(dotted_path) or not _is_inside(module_name, (*SUITE, *trusted_modules)):
        remedy = f"if you trust that code, add trust={module_name or '<module>'}"
        raise ValueError(f"{path}: {key}: {target} is not part of this suite; {remedy}")
    try:
        module = importlib.import_module(module_name)
        function = getattr(module, name)
    # A custom module may raise anything when it is imported.
    except Exception as error:
        raise ValueError(f"{path}: {key}: there is no {target} ({first_line(error)})") from None

    if not _may_be_called(function, trusted_modules):
        raise ValueError(f"{path}: {key}: {target} is neither a part of a model nor a data source nor an inverse")


def custom_code_digests(choices: dict[str, Any]) -> dict[str, str] | None:
    """The sha256 of the files of custom classes, by module; None if all classes belong to the suite.

    Args:
        choices: flat choices or the tree of options, whose classes have been imported.
    """
    digests = {}
    for key, value in _items(choices):
        module_name, _, name = str(value).rpartition(".")
        if key.rpartition(".")[2] != "_target_" or _is_inside(module_name, SUITE):
            continue
        # A package may re-export a class, so the module that defines it counts too.
        function = getattr(sys.modules.get(module_name), name, None)
        home = getattr(function, "__module__", None) or module_name
        for module in (module_name, home):
            digest = None if _is_inside(module, SUITE) else _file_digest(sys.modules.get(module))
            if digest:
                digests[module] = digest
    return digests or None


@functools.cache
def code_digest() -> str:
    """The sha256 of the suite's files that compute a training, read once per process."""
    suite = Path(__file__).parents[1]
    # Packed sequences are computed outside these folders.
    paths = [suite / "varlen.py"]
    for name in ("attention", "data", "model", "ops", "train"):
        paths += sorted((suite / name).rglob("*.py"))
    digests = [atomic.digest(path) for path in paths]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def check_custom_code(path: Path, choices: dict[str, Any], recorded: dict[str, str] | None, *, remedy: str) -> None:
    """Check that the files of custom classes are the same as in a training.

    Args:
        path: run directory or file, for the message.
        choices: flat choices, whose classes have been imported.
        recorded: ``custom_code_digests`` of the training; None if it had no custom classes, or an early version ran it.
        remedy: end of the message.

    Raises:
        ValueError: a file has changed since.
    """
    present = custom_code_digests(choices) or {}
    for module, digest in (recorded or {}).items():
        if present.get(module, digest) != digest:
            raise ValueError(f"{path} was trained with another version of {module}; {remedy}")


@functools.cache
def _file_digest(module: ModuleType | None) -> str | None:
    """The sha256 of the file of a module, read once per module, since an edit does not change an imported class."""
    file = getattr(module, "__file__", None)
    return atomic.digest(Path(file)) if file and Path(file).is_file() else None


def _may_be_called(function: Any, trusted_modules: tuple[str, ...]) -> bool:
    """Whether a value is a part of a model, a source or an inverse of the suite, or callable and trusted."""
    # A module can import anything, so the module that defines the callable decides.
    home = getattr(function, "__module__", None)
    is_class = inspect.isclass(function)
    is_function = inspect.isfunction(function)
    if not isinstance(home, str) or not (is_class or is_function):
        return False
    if _is_inside(home, SUITE):
        is_part = is_class and issubclass(function, nn.Module | Source)
        is_inverse = is_function and home in INVERSES
        return is_part or is_inverse
    return _is_inside(home, trusted_modules)


def _is_inside(module: str, packages: Iterable[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)
