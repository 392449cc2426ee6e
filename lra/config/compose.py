"""Compose the options of a command from words."""

import contextlib
import functools
import os
import pickle
import re
from collections.abc import Iterable, Sequence
from glob import glob
from pathlib import Path
from typing import Any, TypeVar

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict

from . import CONF
from .options import Options
from .quoting import escape

O = TypeVar("O", bound=Options)
_VALUE = re.compile(r"\+*(?!hydra)([\w.]+)=")  # a word that may be a value and not the choice of a group


def compose(kind: type[O], overrides: Iterable[str] = ()) -> O:
    """Parse the options of a command as the command line ``*overrides`` does, for tests, notebooks and sweeps."""
    overrides = list(map(escape, overrides))
    inside = GlobalHydra.instance().is_initialized()
    with contextlib.nullcontext() if inside else hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return kind.from_config(*composed(kind.conf, overrides))


def composed(name: str, overrides: Sequence[str]) -> tuple[DictConfig, DictConfig]:
    """Compose a configuration inside of an initialized hydra.

    Hydra takes most of its time to read and merge groups, hence each choice of groups is read once in a process; plain
    values are set in what was read.

    Args:
        name: name of a yaml of the folder conf.
        overrides: words of a command line.

    Returns:
        The configuration, and the part of hydra's own that ``from_config`` asks for.
    """
    values = [word for word in overrides if (key := _VALUE.match(word)) and not (CONF / key[1]).is_dir()]
    places = [place.path for place in GlobalHydra.instance().config_loader().get_search_path().get_path()]
    yamls = [yaml for place in places for yaml in glob(f"{place.removeprefix('file://')}/**/*.yaml", recursive=True)]
    state = tuple((yaml, os.stat(yaml).st_mtime_ns) for yaml in yamls)
    try:
        config, own = pickle.loads(_read(name, tuple(word for word in overrides if word not in values), state))
        for word in map(OverridesParser.create().parse_override, values):
            if word.is_add() and OmegaConf.select(config, word.key_or_group) is not None:
                raise ValueError
            OmegaConf.update(config, word.key_or_group, word.value(), force_add=word.is_add() or word.is_force_add())
    except Exception:  # once more, for hydra's own words
        config, own = pickle.loads(_read(name, tuple(overrides), state))
    own.overrides.task = list(overrides)
    return config, own


@functools.lru_cache(256)
def _read(name: str, overrides: tuple[str, ...], state: tuple[tuple[str, int], ...]) -> bytes:
    config = hydra.compose(name, list(overrides), return_hydra_config=True)
    with open_dict(config):
        own = config.pop("hydra")
    runtime = {"choices": OmegaConf.to_container(own.runtime.choices)}
    return pickle.dumps((config, OmegaConf.create({"mode": own.mode, "overrides": {"task": []}, "runtime": runtime})))


def overrides_of(hydra_config: DictConfig) -> list[str]:
    """The overrides of a command as they were written, with ``${...}`` unresolved.

    Args:
        hydra_config: Hydra's own configuration.
    """
    return OmegaConf.to_container(hydra_config.overrides.task)


def further() -> list[Path]:
    """The further folders of yamls that this process was given with --config-dir."""
    sources = HydraConfig.get().runtime.config_sources if HydraConfig.initialized() else []
    return [Path(s.path) for s in sources if s.provider == "command-line"]


def folders() -> list[str]:
    """The words of a command line that name the further folders."""
    return [word for folder in further() for word in ("--config-dir", str(folder))]


def mechanism(words: Iterable[str]) -> list[str]:
    """The words of a command line that choose a mechanism and its block, ``attn=`` first; empty without.

    Raises:
        ValueError: there is an option of a mechanism, and none is named.
    """
    own = [word for word in words if word.lstrip("+").startswith(("attn=", "attn.", "block"))]
    named = [word for word in own if word.startswith("attn=")]
    if own and not named:
        raise ValueError(f"{own[0]} needs attn=<name>; attn is a name of conf/attn, or custom with attn._target_=")
    return [*named[-1:], *(word for word in own if word not in named)]


def class_pooled(*, _root_: DictConfig) -> bool | None:
    """Resolve ``${class_pooled:}``: whether sequences get a class token; None in a configuration without a model."""
    pool = OmegaConf.select(_root_, "model.pool")
    return None if pool is None else pool in ("cls", "class")


def of_budget(*keys_and_default: Any, _root_: DictConfig) -> Any:
    """Resolve ``${of_budget:key,default}``: a value of the chosen budget in the task's yaml, or the default.

    ``${of_budget:allowance,kept,64}`` is the token budget of all mechanisms (``allowance``) if the budget has one, else
    its ``kept``, else 64. ``${of_budget:allowance/4,64}`` is a quarter of the token budget, at least 1, else 64.
    """
    *keys, default = keys_and_default
    budgets = OmegaConf.select(_root_, "budgets")
    budget = {} if budgets is None else budgets.get(_root_.budget, {})
    for key in keys:
        name, _, divisor = key.partition("/")
        value = budget.get(name)
        if value is not None:
            return max(1, value // int(divisor)) if divisor else value
    return default


for _resolver in (class_pooled, of_budget):
    OmegaConf.register_new_resolver(_resolver.__name__, _resolver, replace=True)
