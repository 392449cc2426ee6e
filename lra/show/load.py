"""A trained model and the data it was trained for, from the folder of a run alone."""

import pickle
from pathlib import Path
from typing import Any

import torch
import yaml
from omegaconf import DictConfig, OmegaConf

from .. import build
from ..config import CONF
from ..data.task import TaskData
from ..model.classifier import Classifier


def configuration(run: Path, root: str) -> DictConfig:
    """What ``lra.train`` built from, with ``task.display`` and the place of the data, which config.yaml leaves out.

    Raises ValueError where the folder is not that of a run.
    """
    path = run / "config.yaml"
    if not path.is_file():
        there = "has no config.yaml" if run.is_dir() else "is not a folder"
        raise ValueError(f"{run} {there}; run must be the folder of a seed, runs/<study>/<task>/<label>/seed-<k>")
    try:
        flat = yaml.safe_load(path.read_text(encoding="utf-8"))
        tree = unflatten(flat)
        word, display = task_word(tree["source"]["_target_"])
        tree["task"]["display"] = display
        pad = "batch" if tree["data"]["pad"] == "none" else tree["data"]["pad"]  # the maps are of padded q and k
        tree["data"] |= {"root": root, "eval_batch": tree["optim"]["batch"], "pad": pad}
        sizes = [
            f"source.{key}={value}" for key, value in tree["source"].items() if key[0] != "_" and value is not None
        ]
    except (AttributeError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
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


def trained(run: Path, config: DictConfig) -> tuple[Classifier, TaskData]:
    """The model with the weights of best.ckpt, in eval mode on the CPU, and its data.

    Raises ValueError where weights or data are missing, damaged or of another model.
    """
    if reason := build.unavailable(config):
        raise ValueError(reason)
    path = run / "best.ckpt"
    if not path.is_file():
        raise ValueError(f"{run} has no best.ckpt: it has not reached its first evaluation, or was copied without it")
    data = build.task_data(config)
    data.setup()
    model = build.classifier(config)
    try:
        model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except (RuntimeError, EOFError, pickle.UnpicklingError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} does not hold the weights of this model ({reason})") from None
    return model.eval(), data
