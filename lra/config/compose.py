"""Compose the options of a command from overrides."""

import contextlib
import functools
import os
import pickle
import re
from collections.abc import Iterable, Sequence
from glob import glob
from pathlib import Path
from typing import Any, TypeVar, cast

import hydra
from hydra.conf import HydraConf
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict

from ..model.pooling import FIRST_VECTOR
from . import CONF, recipes
from .options import Options, to_tree
from .quoting import escape

O = TypeVar("O", bound=Options)
# An override that may set a value; overrides of groups choose a yaml.
_VALUE = re.compile(r"\+*(?!hydra)([\w.]+)=")


def compose(kind: type[O], overrides: Iterable[str] = ()) -> O:
    """Parse the options of a command as the command line ``*overrides`` does, for tests, notebooks and sweeps."""
    overrides = [escape(override) for override in overrides]
    # Inside of a command Hydra is initialized already, with the folders of --config-dir.
    if GlobalHydra.instance().is_initialized():
        initialized: contextlib.AbstractContextManager = contextlib.nullcontext()
    else:
        initialized = hydra.initialize_config_dir(str(CONF), version_base="1.3")
    with initialized:
        config, hydra_config = compose_config(kind.conf, overrides)
        return kind.from_config(config, hydra_config)


def compose_config(name: str, overrides: Sequence[str]) -> tuple[DictConfig, DictConfig]:
    """Compose a configuration inside of an initialized Hydra.

    Hydra spends most of its time on reading and merging groups. Each choice of groups is therefore read once, until a
    yaml changes, and the values are set in a copy of the result.

    Args:
        name: name of a yaml of the folder conf.
        overrides: overrides of the command.

    Returns:
        The configuration, and the part of Hydra's own configuration that ``from_config`` needs.
    """
    times = _modification_times()
    values = [line for line in overrides if _sets_a_value(line)]
    choices = [line for line in overrides if line not in values]
    try:
        config, hydra_config = _read(name, choices, times)
        for value in values:
            _set(config, value)
    # Any error: read everything again, for Hydra's message.
    except Exception:
        config, hydra_config = _read(name, overrides, times)
    hydra_config.overrides.task = list(overrides)
    return config, hydra_config


def _sets_a_value(line: str) -> bool:
    """Whether an override sets a value and does not choose a yaml of a group."""
    key = _VALUE.match(line)
    return key is not None and not (CONF / key[1]).is_dir()


def _set(config: DictConfig, line: str) -> None:
    """Set a value in a configuration, as Hydra does; raises an exception wherever Hydra might reject the override."""
    override = OverridesParser.create().parse_override(line)
    key = override.key_or_group
    if override.is_add() and OmegaConf.select(config, key) is not None:
        raise ValueError(f"{key} has a value")
    is_addition = override.is_add() or override.is_force_add()
    OmegaConf.update(config, key, override.value(), force_add=is_addition)


def _modification_times() -> tuple[tuple[str, int], ...]:
    """The yamls on Hydra's search path with their modification times, a part of the key of the cache."""
    loader = GlobalHydra.instance().config_loader()
    yamls: list[str] = []
    for source in loader.get_search_path().get_path():
        folder = source.path.removeprefix("file://")
        yamls += glob(f"{folder}/**/*.yaml", recursive=True)
    return tuple((yaml, os.stat(yaml).st_mtime_ns) for yaml in yamls)


def _read(name: str, overrides: Sequence[str], times: tuple[tuple[str, int], ...]) -> tuple[DictConfig, DictConfig]:
    """Read a configuration as Hydra does, or copy an earlier reading of the same files."""
    return pickle.loads(_pickled(name, tuple(overrides), times))


@functools.lru_cache(256)
def _pickled(name: str, overrides: tuple[str, ...], times: tuple[tuple[str, int], ...]) -> bytes:
    config = hydra.compose(name, list(overrides), return_hydra_config=True)
    with open_dict(config):
        hydra_config = config.pop("hydra")
    # The part of Hydra's own configuration that ``from_config`` needs.
    choices = OmegaConf.to_container(hydra_config.runtime.choices)
    tree = {"mode": hydra_config.mode, "overrides": {"task": []}, "runtime": {"choices": choices}}
    return pickle.dumps((config, OmegaConf.create(tree)))


def overrides_of(hydra_config: DictConfig | HydraConf) -> list[str]:
    """The overrides of a command as they were written, with ``${...}`` unresolved.

    Args:
        hydra_config: Hydra's own configuration.
    """
    # Hydra declares its configuration by the dataclasses of the schema.
    overrides = cast(DictConfig, hydra_config.overrides)
    return to_tree(overrides)["task"]


def config_dirs() -> list[Path]:
    """The folders of yamls that --config-dir names."""
    if not HydraConfig.initialized():
        return []
    sources = HydraConfig.get().runtime.config_sources
    return [Path(source.path) for source in sources if source.provider == "command-line"]


def config_dir_flags() -> list[str]:
    """The --config-dir arguments that a further command needs to find the same yamls."""
    arguments: list[str] = []
    for folder in config_dirs():
        arguments += ["--config-dir", str(folder)]
    return arguments


def mechanism_overrides(overrides: Iterable[str]) -> list[str]:
    """Select the overrides that choose a mechanism and its block, ``attn=`` first.

    Raises:
        ValueError: there is an override of a mechanism or of its block, but no ``attn=``.
    """
    selected = [line for line in overrides if line.lstrip("+~").startswith(("attn=", "attn.", "block"))]
    names = [line for line in selected if line.startswith("attn=")]
    if selected and not names:
        raise ValueError(f"{selected[0]} needs attn=<name>; attn is a name of conf/attn, or custom with attn._target_=")
    # The last name counts.
    options = [line for line in selected if line not in names]
    return names[-1:] + options


def class_pooled(*, _root_: DictConfig) -> bool | None:
    """Resolve ``${class_pooled:}``: whether sequences get a class token; None in a configuration without a model."""
    pool = OmegaConf.select(_root_, "model.pool")
    return None if pool is None else pool in FIRST_VECTOR


def of_budget(*keys_and_default: Any, _root_: DictConfig) -> Any:
    """Resolve ``${of_budget:key,default}``: a value of the chosen budget of the task or experiment, or the default.

    ``${of_budget:allowance,kept,64}`` is the token budget of all mechanisms (``allowance``) if the budget has one, else
    its ``kept``, else 64. ``${of_budget:allowance/4,64}`` is a quarter of the token budget, rounded down and at
    least 1, else 64. ``allowance/16*2`` is twice such a sixteenth, an even number. A default may be another option:
    ``${of_budget:pretrain_lr,optim.lr}``.
    """
    *keys, default = keys_and_default
    budgets = OmegaConf.select(_root_, "budgets")
    budget = {} if budgets is None else budgets.get(_root_.budget, {})
    for key in keys:
        name, _, ratio = key.partition("/")
        value = budget.get(name)
        if value is None:
            continue
        if not ratio:
            return value
        divisor, _, factor = ratio.partition("*")
        return max(1, value // int(divisor)) * int(factor or 1)
    is_option = isinstance(default, str) and "." in default
    return OmegaConf.select(_root_, default) if is_option else default


def runs_folder(*, _root_: DictConfig) -> str:
    """Resolve ``${runs_folder:}``: the option ``runs`` with a leading ~ as the home folder; "." without the option."""
    runs = OmegaConf.select(_root_, "runs")
    return os.path.expanduser("." if runs is None else str(runs))


for _resolver in (class_pooled, of_budget, runs_folder):
    OmegaConf.register_new_resolver(_resolver.__name__, _resolver, replace=True)
recipes.register()
