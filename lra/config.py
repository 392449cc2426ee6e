"""From the command line to a checked configuration: entry points, names of runs, one-line errors."""

import contextlib
import functools
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from data_prep.source import NO_ROOM

from .startup import interruptible

REFUSALS = (ValueError, OSError, HydraException, OmegaConfBaseException)
_DATA_WORDS = ("task=", "task.", "budget=", "source.", "data.root=", "protocol=")
_EXTRAS = {"submitit_slurm": "slurm", "submitit_local": "slurm", "ray": "ray"}  # launchers that are not core
_here = Path(__file__).resolve().parent
# Beside the package in a checkout, inside it in a wheel.
CONF = next(folder for folder in (_here / "conf", _here.parent / "conf") if folder.is_dir())


def main(name: str) -> Callable:
    """Make a function of a DictConfig an entry point over conf/<name>.yaml.

    The function itself stays reachable as ``__wrapped__``. What a user did wrong (ValueError, OSError, hydra's own
    refusals) ends in one line on stderr and exit status 1; LRA_TRACEBACK=1 shows the traceback instead. With -m a run
    that fails, for whatever reason, stops no other; the failed ones are listed at the end.
    """

    def decorate(function: Callable[[DictConfig], Any]) -> Callable[[], None]:
        show = "LRA_TRACEBACK" in os.environ
        failed: list[str] = []  # runs of -m, with their reason

        @functools.wraps(function)
        def run(config: DictConfig) -> Any:
            choices = HydraConfig.get()
            try:
                return function(name_run(config, choices))
            except Exception as error:
                unexpected = show or not isinstance(error, REFUSALS)
                if choices.mode is RunMode.MULTIRUN:
                    if unexpected:
                        traceback.print_exc()
                    failed.append(f"{' '.join(choices.overrides.task)}: {explain(error)}")
                    print(f"lra: failed: {failed[-1]}", file=sys.stderr)
                    raise  # hydra goes on with the other runs and hands the first error over at the end
                if unexpected:
                    raise
                sys.exit(f"lra: {explain(error)}")

        @functools.wraps(function)
        def entry() -> None:
            os.environ["HYDRA_FULL_ERROR"] = "1"  # hand exceptions over instead of printing them
            failed.clear()
            try:
                interruptible()
                sys.argv[1:] = map(_escape, sys.argv[1:])
                if {"-m", "--multirun"} & set(sys.argv):
                    sys.argv[1:] = follow(sys.argv[1:])
                hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(run)()
            except KeyboardInterrupt as stop:
                sys.exit(f"lra: {stop}" if str(stop) else "lra: interrupted")
            except Exception as error:
                if failed:
                    sys.exit("\n  ".join([f"lra: {len(failed)} failed, the others ended well", *failed]))
                if show or not isinstance(error, REFUSALS):
                    raise
                sys.exit(f"lra: {explain(error)}")

        return entry

    return decorate


def _escape(word: str) -> str:
    """run=runs/cur_abs-count=32 -> run=runs/cur_abs-count\\=32, which is how hydra reads the folder of such a label."""
    key, _, value = word.partition("=")
    plain = "=" in value and "\\=" not in value and value[0] not in "[{'\""
    return f"{key}={value.replace('=', chr(92) + '=')}" if plain else word


def follow(words: list[str]) -> list[str]:
    """attn=sdpa,cur_abs attn.count=32 -> attn.count=choice(32), which hydra looks at once it has an attn."""
    parser = OverridesParser.create()
    parsed = {}
    for word in words:
        with contextlib.suppress(HydraException):  # an option of hydra's own, or a mistake that it explains itself
            parsed[word] = parser.parse_override(word)
    swept = {o.key_or_group for o in parsed.values() if o.is_sweep_override() and (CONF / o.key_or_group).is_dir()}
    late = {
        word
        for word, o in parsed.items()
        if o.key_or_group.partition(".")[0] in swept - {o.key_or_group} and not (o.is_sweep_override() or o.is_delete())
    }
    return [re.sub("=(.*)", r"=choice(\1)", word, count=1, flags=re.DOTALL) if word in late else word for word in words]


def compose(name: str, overrides: Iterable[str] = ()) -> DictConfig:
    """The configuration that ``python -m lra.<name> *overrides`` would see, for tests and notebooks."""
    inside = GlobalHydra.instance().is_initialized()
    with contextlib.nullcontext() if inside else hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra.compose(name, list(overrides), return_hydra_config=True)
        choices = config.hydra
        with open_dict(config):
            del config["hydra"]
        return name_run(config, choices)


def name_run(config: DictConfig, choices: DictConfig) -> DictConfig:
    """Refuse groups that were given a list, and add ``label``: the attn word, or the class of attn=custom, plus the
    keys of it that were changed and the ``label_keys``."""
    for line in choices.overrides.task:
        group, _, value = line.lstrip("+~").partition("=")
        if value.startswith("[") and (CONF / group).is_dir():
            raise ValueError(f"{group} takes one word, not a list; for several runs: -m {group}={value.strip('[]')}")
    with open_dict(config):
        config.words = list(choices.overrides.task)
        config.data_words = [line for line in choices.overrides.task if line.lstrip("+~").startswith(_DATA_WORDS)]
        if (task := choices.runtime.choices.get("task")) and f"task={task}" not in config.data_words:
            config.data_words.insert(0, f"task={task}")  # named by an experiment
        config.multirun = choices.mode is RunMode.MULTIRUN
    if "attn" not in choices.runtime.choices:
        return config
    word = choices.runtime.choices.attn
    changed = {
        line.split("=", 1)[0].lstrip("+~") for line in choices.overrides.task if line.lstrip("+~").startswith("attn.")
    }
    default = flatten(_load_attn(word)) if changed else {}
    label, flat = word, flatten(OmegaConf.to_container(config.attn, resolve=True))
    if word == "custom" and not OmegaConf.is_missing(config.attn, "_target_"):
        name = flat.pop("_target_").rpartition(".")[2]
        label = f"custom-{name}" if (CONF / "attn" / f"{name}.yaml").exists() else name
    for key, value in sorted(flat.items()):
        if any(f"attn.{key}.".startswith(f"{c}.") for c in changed) and default.get(key) != value:
            label += f"-{key}={value}"
    for key in config.get("label_keys", []):
        label += f"-{key}={choices.runtime.choices.get(key) or OmegaConf.select(config, key)}"
    with open_dict(config):
        config.label = label.replace("/", "_")
    return config


def check_budget(config: DictConfig) -> None:
    if config.budget not in config.budgets:
        raise ValueError(f"budget must be one of {', '.join(config.budgets)}, not {config.budget!r}")


def data_command(config: DictConfig) -> str:
    """What to type to prepare the data of this configuration."""
    return f"python -m data_prep {' '.join(config.data_words)}"


@functools.cache
def _load_attn(word: str) -> dict:
    loader = GlobalHydra.instance().config_loader()
    # A word may choose its block, so there has to be one.
    config = loader.load_configuration(None, ["+block=prenorm", f"+attn={word}"], RunMode.RUN)
    return OmegaConf.to_container(config.attn, resolve=True)


def flatten(tree: dict, prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}"""
    flat = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def check_keys(node: DictConfig, path: str) -> None:
    """Raise ValueError where a node names an argument that its ``_target_`` does not take, and say which it takes."""
    target = hydra.utils.get_object(node._target_)
    valid = set()
    for cls in inspect.getmro(target) if inspect.isclass(target) else (target,):
        function = cls.__init__ if inspect.isclass(cls) else cls
        valid |= {p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY}
    for key, value in node.items():
        if not key.startswith("_") and key not in valid:
            raise ValueError(f"{path}.{key}: no such key; {path} has {', '.join(sorted(valid))}")
        if isinstance(value, DictConfig) and "_target_" in value:
            check_keys(value, f"{path}.{key}")


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def explain(error: BaseException) -> str:
    """One line for what a user did wrong: the offending word and the valid ones."""
    chain = [error]
    while (cause := _cause(chain[-1])) is not None:
        chain.append(cause)
    for cause in reversed(chain):
        if isinstance(cause, ConfigAttributeError | ConfigKeyError) and cause.full_key:
            parent = cause.full_key.rpartition(".")[0] or "the configuration"
            keys = sorted(str(key) for key in cause.parent_node or [])
            return f"{cause.full_key}: no such key; {parent} has {', '.join(keys)}"
        if isinstance(cause, MissingConfigException) and cause.options:
            group, _, word = cause.missing_cfg_file.rpartition("/")
            if group == "hydra/launcher" and word in _EXTRAS:
                return f"{group}={word} is not installed: pip install '.[{_EXTRAS[word]}]'"
            return f"{group}={word}: no such choice; {group} is one of {', '.join(cause.options)}"
        if isinstance(cause, ValueError) and not isinstance(cause, OmegaConfBaseException):
            return str(cause)
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        place = error.filename or "a file"
        return f"{place} cannot be written: {error.strerror}; make room, then the same command goes on"
    text = " ".join(str(error).split()) or type(error).__name__
    if text.startswith("Ambiguous value for argument"):
        return f"{text.split(chr(39))[1]}: several values need -m, one run each"
    return text
