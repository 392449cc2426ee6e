"""A run as it lies in its folder: the only reader of what training left there."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from ..config import CONF, flatten
from . import checkpoint, config_file, record
from .canonical import bare_name, canonical
from .record import RunRecord

Trust = str | Iterable[str] | None  # modules besides the suite's whose classes a config.yaml may name


@dataclass(frozen=True)
class Run:
    """One seed.

    Args:
        folder: ``runs/<study>/<task>/<label>/seed-<k>``.
        choices: flat, as ``config.yaml`` has them.
        record: None before the end of the run.
    """

    folder: Path
    choices: dict[str, Any]
    record: RunRecord | None

    @property
    def weights(self) -> Path:
        """The weights of the best dev score, which may not be there; a published run has them as safetensors."""
        safe = self.folder / checkpoint.SAFE
        return safe if safe.exists() and not (self.folder / checkpoint.BEST).exists() else self.folder / checkpoint.BEST

    def evaluations(self) -> list[dict[str, float]]:
        """The rows of ``metrics.csv``. Raises ValueError if that is not such a table."""
        return record.evaluations(self.folder)

    def configuration(self, root: str) -> DictConfig:
        """Restore what ``lra.train`` built the model and the data from, for padded rows.

        Args:
            root: folder of the data, which ``config.yaml`` leaves out.

        Returns:
            The choices as a tree with ``task.display`` (None for a source that no task of conf has), ``label``,
            ``data_overrides`` and, of a finished run, ``study``, ``budget`` and ``seeds``.

        Raises:
            ValueError: the choices are not those of a run.
        """
        choices = config_file.present(self.choices)
        try:
            tree = unflatten({key: value for key, value in choices.items() if not key.startswith("provenance.")})
            task, display = _task(tree["source"]["_target_"]) or (tree["task"]["name"], None)
            tree["task"]["display"] = display
            tree["data"] |= {"root": root, "eval_batch": tree["optim"]["batch"]}
            if tree["data"]["pad"] in ("none", "compact"):
                tree["data"]["pad"] = "batch"
            arguments = {key: value for key, value in tree["source"].items() if key[0] != "_" and value is not None}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            path = self.folder / config_file.NAME
            raise ValueError(f"{path} is not the configuration of a run ({type(error).__name__}: {error})") from None
        tree["data_overrides"] = [f"task={task}", *(f"source.{key}={value}" for key, value in arguments.items())]
        if r := self.record:
            tree |= {"study": r.study, "budget": r.budget, "seeds": [r.seed]}
        return OmegaConf.create(tree | {"label": self.record.label if self.record else self.folder.parent.name})

    def check_data(self, provenance: dict) -> None:
        """Raise ValueError if the run was trained on other data than those of a provenance."""
        own = {key: value for key, value in self.choices.items() if key.startswith("provenance.")}
        if difference := record.difference(own, flatten({"provenance": provenance})):
            raise ValueError(f"{self.folder} was trained on other data ({difference})")


def open_run(folder: Path, trust: Trust = None) -> Run:
    """Read the configuration and the record of a seed.

    Raises:
        ValueError: the folder is not that of a seed, its files are damaged or do not belong together, or its
            configuration names what it may not.
    """
    path = folder / config_file.NAME
    if not (path.exists() or (folder / record.NAME).exists()):
        there = "has no config.yaml" if folder.is_dir() else "is not a folder"
        raise ValueError(f"{folder} {there}; run must be the folder of a seed, runs/<study>/<task>/<label>/seed-<k>")
    made = record.load(folder / record.NAME) if (folder / record.NAME).exists() else None
    choices = config_file.read(path)
    if made:
        record.check_choices(choices, made, folder)
    config_file.check_trust(config_file.present(choices), path, trust)
    return Run(folder, choices, made)


def finished(folder: Path, trust: Trust = None) -> list[Run]:
    """Open the finished seeds of runs/<study>/<task>/<label>, or the one of a seed's folder.

    Raises:
        ValueError: there is no such seed, and as ``open_run`` does.
    """
    if not folder.is_dir():
        raise ValueError(f"run={folder} is not a folder; name one of runs/<study>/<task>/<label>")
    seed = any((folder / name).exists() for name in (config_file.NAME, record.NAME))
    homes = [folder] if seed else sorted(folder.glob("seed-*"))
    runs = [open_run(home, trust) for home in homes if (home / record.NAME).exists()]
    done = [run for run in runs if run.record.status == "done"]
    if not done:
        why = "its seeds diverged" if runs else f"no {record.NAME}, python -m lra.train makes them"
        raise ValueError(f"run={folder} has no finished seed: {why}")
    return done


def history(root: Path) -> list[tuple[RunRecord, dict[str, Any]]]:
    """The readable records below a folder with the canonical choices of their runs, none of which is built from."""
    found = []
    for path, made in record.scan(root)[0].items():
        try:
            found.append((made, canonical(config_file.read(path / config_file.NAME))))
        except ValueError:
            continue
    return found


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


def _task(target: str) -> tuple[str, str] | None:
    """The first name of conf/task with a source of this class, and how its rows are displayed."""
    for path in sorted((CONF / "task").glob("*.yaml")):
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        if bare_name(tree.get("source", {}).get("_target_")) == bare_name(target):
            return path.stem, tree["task"]["display"]
    return None
