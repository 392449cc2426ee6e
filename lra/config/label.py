"""The label of a run, which names its folder and its row in tables."""

import functools
from collections.abc import Mapping
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from . import CONF
from .section import ABSENT, typed
from .sections import Name


def label(tree: dict[str, Any], words: list[str], groups: Mapping[str, str]) -> str:
    """Name the folder of a run: attn, its changed options, the pretraining and the ``label_keys``.

    Args:
        tree: options, plain and resolved.
        words: words of the command line.
        groups: choices of hydra.

    Raises:
        ValueError: a key of ``label_keys`` does not exist, or the label is no valid name.
    """
    text = groups["attn"]
    changed = {line.split("=", 1)[0].lstrip("+~") for line in words if line.lstrip("+~").startswith("attn.")}
    default = flatten(_default_attn(text, tree)) if changed else {}
    flat = flatten(tree)
    options = flatten(tree["attn"])
    if text == "custom" and options["_target_"] != ABSENT:
        text = options.pop("_target_").rpartition(".")[2]
        if (CONF / "attn" / f"{text}.yaml").exists():
            text = f"custom-{text}"
    for key, value in sorted(options.items()):
        if any(f"attn.{key}.".startswith(f"{c}.") for c in changed) and default.get(key) != value:
            text += f"-{key}={value}"
    if (pretrain := tree.get("pretrain")) and pretrain["objective"] != "none":
        text += f"+{pretrain['objective']}" + "-matched" * pretrain["matched"]
    for key in tree.get("label_keys", []):
        if key not in groups and key not in flat:
            raise ValueError(
                f"label_keys: {key}: no such key; name groups, such as block, or options, such as optim.lr"
            )
        text += f"-{key}={groups.get(key) or flat.get(key)}"
    return typed(Name, text.replace("/", "_"), "the label of a run")


def _default_attn(name: str, tree: dict[str, Any]) -> dict:
    """The attn of a name without overrides, with its interpolations into the rest of the options resolved."""
    return OmegaConf.to_container(OmegaConf.create(tree | {"attn": _load_attn(name)}).attn, resolve=True)


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
