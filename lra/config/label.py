"""The label of a configuration: what names its folder and its row in tables."""

import copy
import functools
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from . import CONF
from .section import typed
from .sections import Name


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
        text += f"-{key}={choices.runtime.choices.get(key) or flat.get(key)}"
    return typed(Name, text.replace("/", "_"), "the label of a run")


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
