"""From the command line to a checked configuration: entry points, names of runs, one-line errors."""

import contextlib
import copy
import functools
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from . import schema
from .console import log, without_login
from .disk.atomic import NO_ROOM
from .startup import interruptible

OUT_OF_MEMORY = "out of memory"
REFUSALS = (ValueError, OSError, MemoryError, HydraException, OmegaConfBaseException)
_DATA_KEYS = ("task=", "task.", "budget=", "source.", "data.root=", "protocol=")
_EXTRAS = {"submitit_slurm": "slurm", "submitit_local": "slurm", "ray": "ray"}  # launchers that are not core
_here = Path(__file__).resolve().parent
# Beside the package in a checkout, inside it in a wheel.
CONF = next(folder for folder in (_here / "conf", _here.parent / "conf") if folder.is_dir())


def main(name: str) -> Callable:
    """Make a function of a DictConfig an entry point over conf/<name>.yaml.

    The function itself is reachable as ``__wrapped__``. A user's mistake (ValueError, OSError, hydra's own errors) ends
    in one line on stderr and exit status 1; LRA_TRACEBACK=1 shows the traceback instead. With -m a run that fails for
    any reason does not stop the others; the failed ones are listed at the end.
    """

    def decorate(function: Callable[[DictConfig], Any]) -> Callable[[], None]:
        show = "LRA_TRACEBACK" in os.environ
        failed: list[str] = []  # runs of -m in this process, with their reason
        parent: int | None = None  # pid of the command itself; a launcher starts further processes

        @functools.wraps(function)
        def run(config: DictConfig) -> Any:
            choices = HydraConfig.get()
            try:
                return function(prepared(name, config, choices))
            except Exception as error:
                unexpected = show or not refusal(error)
                if choices.mode is RunMode.MULTIRUN:
                    if unexpected:
                        traceback.print_exc()
                    failed.append(without_login(f"{' '.join(choices.overrides.task)}: {explain(error)}"))
                    log(f"lra: failed: {failed[-1]}")
                    if os.getpid() == parent:  # listed at the end; hydra would print the overrides once more
                        return None
                    raise  # in a launcher's process: hydra continues and raises the first error at the end
                if unexpected:
                    raise
                sys.exit(without_login(f"lra: {explain(error)}"))

        @functools.wraps(function)
        def entry() -> None:
            nonlocal parent
            parent = os.getpid()
            os.environ["HYDRA_FULL_ERROR"] = "1"  # raise exceptions instead of printing them
            failed.clear()
            try:
                interruptible()
                refuse_lists(sys.argv[1:])
                sys.argv[1:] = map(_escape, sys.argv[1:])
                if {"-m", "--multirun"} & set(sys.argv):
                    sys.argv[1:] = follow(sys.argv[1:])
                hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(run)()
                if failed:
                    sys.exit("\n  ".join([f"lra: {len(failed)} failed, the others ended well", *failed]))
            except KeyboardInterrupt as stop:
                sys.exit(f"lra: {stop}" if str(stop) else "lra: interrupted")
            except Exception as error:
                if show or not refusal(error):
                    raise
                sys.exit(without_login(f"lra: {explain(error)}"))

        return entry

    return decorate


def refusal(error: Exception) -> bool:
    """Whether an error is one that a user can mend, so that one line is enough."""
    return isinstance(error, REFUSALS) or failure(error) == OUT_OF_MEMORY


def refuse_lists(overrides: Iterable[str]) -> None:
    """Raise ValueError for a group with a list as its value, which hydra would read as something else."""
    for override in overrides:
        group, _, value = override.lstrip("+~").partition("=")
        if value.startswith("[") and (CONF / group).is_dir():
            raise ValueError(f"{group} takes one name, not a list; for several runs: -m {group}={value.strip('[]')}")


def _escape(override: str) -> str:
    """Escape "=" in a value, as hydra requires: run=runs/cur_abs-count=32 -> run=runs/cur_abs-count\\=32."""
    key, _, value = override.partition("=")
    call = re.match(r"\w+\(", value)  # of hydra's grammar: glob(*,exclude=psf*)
    plain = "=" in value and "\\=" not in value and value[0] not in "[{'\"" and not call
    return f"{key}={value.replace('=', chr(92) + '=')}" if plain else override


def follow(overrides: list[str]) -> list[str]:
    """Delay options of a swept group: attn=sdpa,cur_abs attn.count=32 -> attn.count=choice(32).

    Hydra first composes without the swept overrides, that is with another attn, which may lack a plain override's key;
    it applies a choice only in each run.
    """
    parser = OverridesParser.create()
    parsed = {}
    for override in overrides:
        with contextlib.suppress(HydraException):  # an option of hydra's own, or a mistake that hydra reports
            parsed[override] = parser.parse_override(override)
    swept = {o.key_or_group for o in parsed.values() if o.is_sweep_override() and (CONF / o.key_or_group).is_dir()}
    late = {
        override
        for override, o in parsed.items()
        if o.key_or_group.partition(".")[0] in swept - {o.key_or_group} and not (o.is_sweep_override() or o.is_delete())
    }
    choice = lambda override: re.sub("=(.*)", r"=choice(\1)", override, count=1, flags=re.DOTALL)
    return [choice(override) if override in late else override for override in overrides]


def compose(name: str, overrides: Iterable[str] = ()) -> DictConfig:
    """Compose the configuration of ``python -m lra.<name> *overrides``, for tests and notebooks."""
    overrides = list(overrides)
    refuse_lists(overrides)
    inside = GlobalHydra.instance().is_initialized()
    with contextlib.nullcontext() if inside else hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra.compose(name, overrides, return_hydra_config=True)
        choices = config.hydra
        with open_dict(config):
            del config["hydra"]
        return prepared(name, config, choices)


def prepared(name: str, config: DictConfig, choices: DictConfig) -> DictConfig:
    """Check and complete a composed configuration.

    Args:
        name: of the entry point.
        config: as hydra composed it.
        choices: hydra's own configuration, with the overrides and the chosen groups.

    Returns:
        The configuration with values of the types of ``schema``, ``command_overrides``, the ``data_overrides`` among
        them that ``data_prep`` needs for its data, and a ``label`` if it has an attn.

    Raises:
        ValueError: ``schema`` refuses an option.
    """
    config = schema.resolved(name, config)
    with open_dict(config):
        config.command_overrides = list(choices.overrides.task)
        config.data_overrides = [line for line in choices.overrides.task if line.lstrip("+~").startswith(_DATA_KEYS)]
        if (task := choices.runtime.choices.get("task")) and f"task={task}" not in config.data_overrides:
            config.data_overrides.insert(0, f"task={task}")  # named by an experiment
        config.multirun = choices.mode is RunMode.MULTIRUN
        if "attn" in choices.runtime.choices:
            config.label = label(config, choices)
    return config


def label(config: DictConfig, choices: DictConfig) -> str:
    """Name the folder of a configuration: attn, its changed options, the pretraining and the ``label_keys``.

    Args:
        config: checked.
        choices: hydra's own configuration.

    Raises:
        ValueError: a key of ``label_keys`` does not exist, or the label is no valid name.
    """
    name = choices.runtime.choices.attn
    changed = {
        line.split("=", 1)[0].lstrip("+~") for line in choices.overrides.task if line.lstrip("+~").startswith("attn.")
    }
    default = flatten(_default_attn(name, config)) if changed else {}
    text, options = name, flatten(OmegaConf.to_container(config.attn))
    if name == "custom" and not OmegaConf.is_missing(config.attn, "_target_"):
        text = options.pop("_target_").rpartition(".")[2]
        if (CONF / "attn" / f"{text}.yaml").exists():
            text = f"custom-{text}"
    for key, value in sorted(options.items()):
        if any(f"attn.{key}.".startswith(f"{c}.") for c in changed) and default.get(key) != value:
            text += f"-{key}={value}"
    if (pretrain := config.get("pretrain")) and pretrain.objective != "none":
        text += f"+{pretrain.objective}" + "-matched" * pretrain.matched
    flat = flatten(OmegaConf.to_container(config))
    for key in config.get("label_keys", []):
        if key not in choices.runtime.choices and key not in flat:
            raise ValueError(
                f"label_keys: {key}: no such key; name groups, such as block, or options, such as optim.lr"
            )
        text += f"-{key}={choices.runtime.choices.get(key) or flat[key]}"
    return schema.typed(schema.Name, text.replace("/", "_"), "the label of a run")


def data_command(config: DictConfig) -> str:
    """The command that prepares the data of this configuration."""
    return f"python -m data_prep {' '.join(config.data_overrides)}"


def class_pooled(*, _root_: DictConfig) -> bool | None:
    """Resolve ``${class_pooled:}``: whether model.pool=cls; None in a configuration without a model of its own."""
    pool = OmegaConf.select(_root_, "model.pool")
    return None if pool is None else pool == "cls"


def of_budget(key: str, default: int | float, *, _root_: DictConfig) -> int | float:
    """Resolve ``${of_budget:key,default}``: what the chosen budget of the task says about a key, or the default."""
    budgets = OmegaConf.select(_root_, "budgets")
    return default if budgets is None else budgets.get(_root_.budget, {}).get(key, default)


OmegaConf.register_new_resolver("class_pooled", class_pooled, replace=True)
OmegaConf.register_new_resolver("of_budget", of_budget, replace=True)


def _default_attn(name: str, config: DictConfig) -> dict:
    """The attn of a name without overrides, with its interpolations into the rest of the configuration resolved."""
    context = copy.copy(config)
    context.attn = _load_attn(name)
    return OmegaConf.to_container(context.attn, resolve=True)


@functools.cache
def _load_attn(name: str) -> DictConfig:
    loader = GlobalHydra.instance().config_loader()
    # A file of conf/attn may override the block, which has to exist for that.
    return loader.load_configuration(None, ["+block=prenorm", f"+attn={name}"], RunMode.RUN).attn


def flatten(tree: dict, prefix: str = "") -> dict[str, Any]:
    """Flatten a tree to dotted keys: {"a": {"b": 1}} -> {"a.b": 1}."""
    flat = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def explain(error: BaseException) -> str:
    """Describe a user's mistake in one line: the offending option or name and the valid ones."""
    chain = [error]
    while (cause := _cause(chain[-1])) is not None:
        chain.append(cause)
    for cause in reversed(chain):
        if isinstance(cause, ConfigAttributeError | ConfigKeyError) and cause.full_key:
            parent = cause.full_key.rpartition(".")[0] or "the configuration"
            keys = sorted(str(key) for key in cause.parent_node or [])
            return f"{cause.full_key}: no such key; {parent} has {', '.join(keys)}"
        if isinstance(cause, MissingConfigException) and cause.options:
            group, _, name = cause.missing_cfg_file.rpartition("/")
            if group == "hydra/launcher" and name in _EXTRAS:
                return f"{group}={name} is not installed: pip install '.[{_EXTRAS[name]}]'"
            return f"{group}={name}: no such choice; {group} is one of {', '.join(cause.options)}"
        if isinstance(cause, ValueError) and not isinstance(cause, OmegaConfBaseException):
            return str(cause)
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        place = error.filename or "a file"
        return f"{place} cannot be written: {error.strerror}; make room, then the same command goes on"
    text = " ".join(str(error).split()) or type(error).__name__
    if failure(error) == OUT_OF_MEMORY:
        return f"{OUT_OF_MEMORY}: {text.rpartition('] ')[2]}"
    if text.startswith("Ambiguous value for argument"):
        return f"{text.split(chr(39))[1]}: several values need -m, one run each"
    return text


def failure(error: Exception) -> str:
    """Describe an error of a step in one line; a full CPU allocator raises a plain RuntimeError."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
        return OUT_OF_MEMORY
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if isinstance(error, ValueError) else f"failed: {line}"
