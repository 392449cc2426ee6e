"""The configuration of a finished run, from its folder alone."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from . import record
from . import config_file
from ..config import CONF


def configuration(run: Path, root: str, trust: str | Iterable[str] | None = None) -> DictConfig:
    """What ``lra.train`` built from, with ``task.display`` and the place of the data, which config.yaml leaves out.

    trust: modules whose classes config.yaml may name. Raises ValueError where the folder is not that of a run.
    """
    path = run / config_file.NAME
    if not path.is_file():
        there = "has no config.yaml" if run.is_dir() else "is not a folder"
        raise ValueError(f"{run} {there}; run must be the folder of a seed, runs/<study>/<task>/<label>/seed-<k>")
    flat = config_file.read(path)
    if (run / record.NAME).exists():
        record.check_choices(flat, record.load(run / record.NAME), run)
    config_file.check_trust(flat, path, trust)
    try:
        tree = unflatten(flat)
        word, display = task_word(tree["source"]["_target_"])
        tree["task"]["display"] = display
        pad = "batch" if tree["data"]["pad"] == "none" else tree["data"]["pad"]  # the maps are of padded q and k
        tree["data"] |= {"root": root, "eval_batch": tree["optim"]["batch"], "pad": pad}
        sizes = [
            f"source.{key}={value}" for key, value in tree["source"].items() if key[0] != "_" and value is not None
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not the configuration of a run ({type(error).__name__}: {error})") from None
    return OmegaConf.create(tree | {"label": run.parent.name, "data_words": [f"task={word}", *sizes]})


def unflatten(flat: dict[str, Any]) -> dict[str, Any]:
    """{"a.b": 1} -> {"a": {"b": 1}}"""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *path, name = key.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[name] = value
    return tree


def task_word(target: str) -> tuple[str, str]:
    """The word of conf/task whose source this is, and how its rows are displayed."""
    for path in sorted((CONF / "task").glob("*.yaml")):
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        if tree.get("source", {}).get("_target_") == target:
            return path.stem, tree["task"]["display"]
    raise ValueError(f"no task of conf/task has the source {target}")
