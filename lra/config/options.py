"""The options of a command, parsed from its configuration, and the label of its run."""

import functools
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Self, cast

import torch
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from pydantic import Field

from ..data.source import Source as DataSource
from ..ops.attention_maps import uses_kernels
from ..options import flatten, format_value
from . import CONF, schema
from .base import ABSENT, Section, typed
from .quoting import command_line

# Beginnings of the overrides that decide which data a command reads.
_OF_DATA = (
    "experiment=",
    "task=",
    "task.",
    "budget=",
    "budgets.",
    "source.",
    "protocol=",
    "protocol.",
    "data.root=",
    "data.release=",
)
# A key that the command line adds to a budget, such as +budgets.quick.allowance=16.
_ADDED_BUDGET_KEY = re.compile(r"\+{1,2}budgets\.([^.=]+)\.([^.=]+)=")
# Options read a key by ${of_budget:key,default} or ${budgets.${budget}.key}.
_OF_BUDGET = re.compile(r"\$\{of_budget:([^}]*)\}")
_BUDGET_KEY = re.compile(r"\$\{budgets\.\$\{budget\}\.(\w+)\}")
# Keys that are accepted for every mechanism, because several are compared at one token budget.
_TOKEN_BUDGETS = ("allowance", "kept")


class Options(Section):
    """The options of a command as one value.

    Args:
        command_overrides: overrides of the command line.
        data_overrides: overrides among them that ``lra data`` needs for the same data, and the task of an experiment.
        multirun: True if the command is one of several of ``-m``.
        label: name of the configuration in tables, and of the folder of its seeds; empty for a command without
            ``attn``.
    """

    conf: ClassVar[str]  # name of the yaml in the folder conf
    unread: ClassVar[tuple[str, ...]] = ()  # keys of it that are not options of the command itself

    command_overrides: list[str] = Field([], repr=False)  # repr=False: no option
    data_overrides: list[str] = Field([], repr=False)
    multirun: bool = Field(False, repr=False)
    label: str = Field("", repr=False)

    @classmethod
    def check_unresolved(cls, tree: Mapping[str, Any]) -> None:
        """Raise ValueError for invalid options on which the interpolations of other options rely."""
        if "budgets" in tree:
            budget = tree.get("budget")
            budgets = tree["budgets"]
            if not isinstance(budgets, Mapping):
                raise ValueError(f"budgets must be keys with their values, not {format_value(budgets)}")
            if not isinstance(budget, str) or budget not in budgets:
                raise ValueError(f"budget must be one of {', '.join(map(str, budgets))}, not {format_value(budget)}")

    @classmethod
    def from_config(cls, config: DictConfig, hydra_config: DictConfig) -> Self:
        """Parse a composed configuration.

        Args:
            config: what hydra composed.
            hydra_config: hydra's own configuration, with the overrides and the chosen groups.

        Raises:
            ValueError: an option is unknown or missing or has an invalid value, options do not go together, or the
                label is not a valid name.
        """
        unresolved = to_tree(config)
        cls.check_unresolved(unresolved)
        overrides = to_tree(hydra_config.overrides)["task"]
        multirun = hydra_config.mode is RunMode.MULTIRUN
        # The command that prepares the data repeats the keys of budgets, although it reads only some of them.
        if {"attn", "budgets"} <= cls.model_fields.keys():
            _check_added_budget_keys(overrides, unresolved, multirun=multirun)
        groups = hydra_config.runtime.choices
        # Parse the keys that the command reads, with their interpolations resolved.
        if cls.unread:
            keys = [str(key) for key in config if key not in cls.unread]
            config = OmegaConf.masked_copy(config, keys)
        tree = to_tree(config, resolve=True)
        options = cls.parse(tree).resolve()

        # Overrides as they were written, ${...} included. The command that prepares the data repeats those of the data.
        data_overrides = [line for line in overrides if line.lstrip("+~").startswith(_OF_DATA)]
        task = groups.get("task")
        if task and f"task={task}" not in data_overrides:
            data_overrides.insert(0, f"task={task}")  # an experiment chose the task
        options = options.replace(command_overrides=overrides, data_overrides=data_overrides, multirun=multirun)
        if not issubclass(cls, MechanismOptions):
            return options
        return options.replace(label=_build_label(options.to_dict(), overrides, groups, cls.conf))


def _check_added_budget_keys(overrides: list[str], tree: Mapping[str, Any], *, multirun: bool) -> None:
    """Check keys that the command line adds to a budget, which hydra accepts whatever they are.

    Args:
        overrides: overrides of the command line.
        tree: the configuration with its interpolations.
        multirun: whether the command is one of several, which may have other budgets.

    Raises:
        ValueError: a key belongs to another budget than the chosen one, no option reads it, or a token budget is not a
            whole number of at least 1.
    """
    readable = {*_TOKEN_BUDGETS}
    for value in flatten(tree).values():
        readable.update(_BUDGET_KEY.findall(str(value)))
        for keys in _OF_BUDGET.findall(str(value)):
            readable.update(name.partition("/")[0].strip() for name in keys.split(",")[:-1])
    for line in overrides:
        match = _ADDED_BUDGET_KEY.match(line)
        if match is None:
            continue
        budget, key = match.groups()
        option = f"budgets.{budget}.{key}"
        if budget != tree["budget"] and not multirun:
            raise ValueError(f"+{option} has no effect with budget={tree['budget']}")
        if key not in readable:
            raise ValueError(f"no option reads +{option}; they read {', '.join(sorted(readable))}")
        value = tree["budgets"][budget][key]
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        is_count_or_reference = value is None or is_count or "${" in str(value)
        if key in _TOKEN_BUDGETS and not is_count_or_reference:
            raise ValueError(f"{option} must be a whole number of at least 1, not {format_value(value)}")


class MechanismOptions(Options):
    """The options of a command on one mechanism."""

    attn: schema.Attn

    @property
    def unavailable(self) -> str | None:
        """The reason why the mechanism of ``attn`` cannot run here, None if it can."""
        if self.attn.function is None:
            return f"attn={self.label} names no mechanism; name one with attn._target_=package.module.Class"
        impl: Any = self.attn.get("impl") or ""
        needs_gpu = self.attn.get("requires") == "gpu" or uses_kernels(impl)
        if needs_gpu and not torch.cuda.is_available():
            # The kernels are loaded only if they may be used.
            from ..ops.triton import interpreted

            if interpreted():
                return None
            name = self.attn.get("otherwise")
            other = f"attn={name}" if name else "attn.impl=sdpa"
            return f"attn={self.label} needs a GPU, and torch sees none; {other} computes the same without one"
        return None


class TaskOptions(Options):
    """The options that commands on the data of a task share.

    Args:
        provenance: flat provenance of a restored run; None if the options choose the data.
    """

    task: schema.Task
    source: schema.Source
    protocol: schema.Protocol
    budget: schema.Name
    budgets: dict[str, dict[str, schema.Number | list[schema.Number] | None]] = Field({})
    masking: schema.Masking = schema.Masking()
    data: schema.Root
    provenance: dict[str, Any] | None = Field(None, repr=False)

    @property
    def data_command(self) -> str:
        """The command that prepares the data."""
        # ``compose`` imports this module.
        from .compose import config_dir_flags

        return command_line("data", *config_dir_flags(), *self.data_overrides)

    def data_source(self) -> DataSource:
        """Make the source of the data, which knows the command that prepares it and where prepared data are.

        Raises:
            ValueError: the source does not take its options together.
        """
        source = self.source()
        source.command = self.data_command
        source.set_root(self.data.root)
        # A restored run has the data that it was trained on, whatever files there are now.
        if self.provenance is not None:
            source.recorded = self.provenance
        elif self.data.release is not None:
            # A leading ~ was expanded when the options were parsed.
            if not self.data.release.exists():
                raise ValueError(
                    f"data.release={self.data.release} does not exist; correct it, or remove it and LRA_RELEASE: "
                    "source.release= (Text, Image: source.archive=) finds prepared data without their files"
                )
            source.use_release(self.data.release)
        return source


def _build_label(tree: dict[str, Any], overrides: list[str], groups: Mapping[str, str], conf: str) -> str:
    """Name a configuration: attn, its options, the pretraining and the ``label_keys``.

    An option of attn is part of the label if the command line overrides it and its value differs from the default. The
    default is the experiment's value or, without an experiment, the value in the mechanism's yaml.

    Args:
        tree: options of the run.
        overrides: overrides of the command line.
        groups: chosen yaml of each group.
        conf: name of the command's yaml.

    Raises:
        ValueError: a key of ``label_keys`` does not exist, or the label is not a valid folder name.
    """
    text = groups["attn"]
    options = flatten(tree["attn"])
    attn_overrides = [line.lstrip("+~") for line in overrides if line.lstrip("+~").startswith("attn.")]
    overridden = {line.split("=", 1)[0] for line in attn_overrides}

    # Defaults of the mechanism in the experiment, with their interpolations into the rest of the options resolved.
    defaults = {}
    if overridden:
        config = OmegaConf.create(tree | {"attn": _load_attn(text, conf, groups.get("experiment"), groups.get("task"))})
        defaults = flatten(to_tree(config.attn, resolve=True))

    # A custom mechanism has the name of its class, with a prefix if conf/attn has that name too.
    if text == "custom" and options["_target_"] != ABSENT:
        text = options.pop("_target_").rpartition(".")[2]
        if (CONF / "attn" / f"{text}.yaml").exists():
            text = f"custom-{text}"

    for key, value in sorted(options.items()):
        is_overridden = any(f"attn.{key}.".startswith(f"{name}.") for name in overridden)
        if is_overridden and defaults.get(key) != value:
            text += f"-{key}={value}"
    pretrain = tree.get("pretrain")
    if pretrain and pretrain["objective"] != "none":
        text += f"+{pretrain['objective']}"
        if pretrain["matched"]:
            text += "-matched"

    flat = flatten(tree)
    for key in tree.get("label_keys", []):
        if key not in groups and key not in flat:
            raise ValueError(
                f"label_keys: {key}: no such key; name groups, such as block, or options, such as optim.lr"
            )
        text += f"-{key}={groups.get(key) or flat.get(key)}"
    return typed(schema.Name, text.replace("/", "_"), "the label of a run")


@functools.cache
def _load_attn(name: str, conf: str, experiment: str | None, task: str | None) -> DictConfig:
    loader = GlobalHydra.instance().config_loader()
    if experiment:
        choices = [f"experiment={experiment}", f"task={task}", f"attn={name}"]
        return loader.load_configuration(conf, choices, RunMode.RUN).attn
    # A file of conf/attn may override the block, which has to exist for that.
    return loader.load_configuration(None, ["+block=prenorm", f"+attn={name}"], RunMode.RUN).attn


def to_tree(config: DictConfig, *, resolve: bool = False) -> dict[str, Any]:
    """Convert a configuration of OmegaConf to plain values; interpolations stay text unless they are resolved."""
    return cast(dict[str, Any], OmegaConf.to_container(config, resolve=resolve))
