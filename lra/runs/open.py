"""The only reader of a run: of the files that training wrote into its folder, or of the tables of published runs."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..config import CONF
from ..config.experiment import Experiment
from ..config.label import flatten
from ..console import log
from ..disk import checksums
from . import checkpoint, config_file, evaluations, identity, record, tables, typed_json
from .canonical import bare_name, canonical
from .record import RunRecord

OF_MACHINE = {"device": "auto", "devices": 1, "force_bf16": False, "compile": False, "threads": None}
Trust = str | Iterable[str] | None  # modules besides the suite's whose classes a config.yaml may name


@dataclass(frozen=True)
class Run:
    """One seed, as its folder holds it.

    Args:
        folder: ``runs/<study>/<task>/<label>/seed-<k>``.
        choices: flat, as ``config.yaml`` has them.
        record: None before the end of the run.
        published: whether the tables of its study hold the run, and its folder at most the weights.
    """

    folder: Path
    choices: dict[str, Any]
    record: RunRecord | None
    published: bool = False

    @property
    def weights(self) -> Path:
        """Path of the weights with the best dev score, if they are there; a published run has them as safetensors."""
        safe = self.folder / checkpoint.SAFE
        return safe if safe.exists() and not (self.folder / checkpoint.BEST).exists() else self.folder / checkpoint.BEST

    def evaluations(self) -> list[dict[str, float]]:
        """Read the rows of ``metrics.csv``. Raises ValueError if it is not a table of evaluations."""
        return tables.find(self.folder).evaluations if self.published else evaluations.read(self.folder)

    def configuration(self, root: str) -> Experiment:
        """Restore the experiment from which ``lra.train`` built the model and the data, for padded rows.

        Args:
            root: folder of the data, which ``config.yaml`` does not hold.

        Returns:
            The experiment with this seed alone. ``task.display`` is None if no task of conf has the source; options
            that ``config.yaml`` does not hold, such as the device, are those of conf.

        Raises:
            ValueError: the choices are not those of a run.
        """
        choices = config_file.present(self.choices)
        study, _, label, seed = self.folder.absolute().parts[-4:]
        r = self.record
        try:
            tree = unflatten({key: value for key, value in choices.items() if not key.startswith("provenance.")})
            task, display = _task(tree["source"]["_target_"]) or (tree["task"]["name"], None)
            tree["task"]["display"] = display
            tree.setdefault("pretrain", {"objective": "none"})  # the run may be older than pretraining
            tree["data"] |= {"root": root, "eval_batch": tree["optim"]["batch"]}
            if tree["data"]["pad"] in ("none", "compact"):
                tree["data"]["pad"] = "batch"
            tree["trainer"] |= OF_MACHINE
            arguments = {key: value for key, value in tree["source"].items() if key[0] != "_" and value is not None}
            tree["data_overrides"] = [f"task={task}", *(f"source.{key}={value}" for key, value in arguments.items())]
            tree |= {"label": r.label if r else label, "study": r.study if r else study, "runs": str(self.folder)}
            tree |= {"budget": r.budget if r else "unknown", "seeds": [r.seed if r else int(seed.partition("-")[2])]}
            return Experiment.parse(tree)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            path = self.folder / config_file.NAME
            raise ValueError(f"{path} is not the configuration of a run ({type(error).__name__}: {error})") from None

    def check_data(self, provenance: dict) -> None:
        """Raise ValueError if the provenance is not that of the data on which the run was trained."""
        own = {key: value for key, value in self.choices.items() if key.startswith("provenance.")}
        if difference := identity.difference(own, flatten({"provenance": provenance})):
            raise ValueError(f"{self.folder} was trained on other data ({difference})")


def open_run(folder: Path, trust: Trust = None) -> Run:
    """Read the configuration and the record of a seed.

    Args:
        folder: of the seed.
        trust: modules outside the suite whose classes its configuration may name.

    Raises:
        ValueError: the folder is not that of a seed, its files are damaged or do not belong together, or its
            configuration names a class that is not allowed.
    """
    path = folder / config_file.NAME
    if published := tables.find(folder):
        identity.check_choices(published.choices, published.record, folder)
        config_file.check_trust(config_file.present(published.choices), folder, trust)
        return Run(folder, published.choices, published.record, published=True)
    if not (path.exists() or (folder / record.NAME).exists()):
        reason = "has no config.yaml" if folder.is_dir() else "is not a folder"
        raise ValueError(f"{folder} {reason}; run must be the folder of a seed, runs/<study>/<task>/<label>/seed-<k>")
    run_record = record.load(folder / record.NAME) if (folder / record.NAME).exists() else None
    flat = config_file.read(path)
    if run_record:
        identity.check_choices(flat, run_record, folder)
    config_file.check_trust(config_file.present(flat), path, trust)
    return Run(folder, flat, run_record)


def finished(folder: Path, trust: Trust = None) -> list[Run]:
    """Open the finished seeds of runs/<study>/<task>/<label>, or the one of a seed's folder.

    Args:
        folder: of a label or of a seed.
        trust: as in ``open_run``.

    Raises:
        ValueError: there is no such seed, or ``open_run`` refuses one.
    """
    seeds = sorted(tables.below(folder))
    if not (seeds or folder.is_dir()):
        raise ValueError(f"run={folder} is not a folder; name one of runs/<study>/<task>/<label>")
    if not seeds:
        seed = any((folder / name).exists() for name in (config_file.NAME, record.NAME))
        places = [folder] if seed else sorted(folder.glob("seed-*"))
        seeds = [place for place in places if (place / record.NAME).exists()]
    runs = [open_run(place, trust) for place in seeds]
    done = [run for run in runs if run.record.status == "done"]
    if not done:
        reason = "its seeds diverged" if runs else f"no {record.NAME}, python -m lra.train makes them"
        raise ValueError(f"run={folder} has no finished seed: {reason}")
    return done


def scan(root: Path) -> tuple[dict[Path, RunRecord], list[str]]:
    """Read every training record below a folder, and those of published studies if it is theirs.

    Returns:
        The records by their folders, and one line for each that could not be read.
    """
    records, damaged = typed_json.scan(root, record.NAME, record.load)
    for study in tables.studies(root):
        try:
            records |= {path: run.record for path, run in tables.read(study).items()}
        except ValueError as error:
            damaged.append(str(error))
    return records, damaged


def choices(folder: Path) -> dict[str, Any]:
    """Read the flat choices of a run for display; empty for a seed that never had a ``config.yaml``.

    Raises:
        ValueError: the file does not hold the choices of a run.
    """
    if published := tables.find(folder):
        return published.choices
    path = folder / config_file.NAME
    return config_file.read(path) if checksums.expected(path) else {}


def curves(folder: Path) -> dict[str, dict[int, float]]:
    """Read the evaluations of a run as a curve by step for each column; empty for a seed that never had one.

    Raises:
        ValueError: ``metrics.csv`` is not a table of evaluations.
    """
    if published := tables.find(folder):
        return evaluations.by_column(published.evaluations)
    if not checksums.expected(folder / evaluations.NAME):
        return {}
    try:
        return evaluations.by_column(evaluations.read(folder))
    except ValueError as error:
        raise ValueError(f"{error}, no curve is drawn of it") from None


def history(root: Path) -> list[tuple[RunRecord, dict[str, Any]]]:
    """List the readable records below a folder with the canonical choices of their runs; log the others.

    The choices are for comparison only: they may name anything, and nothing is built from them.
    """
    past, (records, damaged) = [], scan(root)
    for folder, run_record in records.items():
        try:
            past.append((run_record, canonical(choices(folder))))
        except ValueError as error:
            damaged.append(str(error))
    for line in damaged:
        log(f"skipped: {line}")
    return past


def unflatten(flat: dict[str, Any]) -> dict[str, Any]:
    """Build a tree from dotted keys: {"a.b": 1} -> {"a": {"b": 1}}."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *path, name = key.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[name] = value
    return tree


def _task(target: str) -> tuple[str, str] | None:
    """The first task of conf whose source is of this class, and its ``display``."""
    for path in sorted((CONF / "task").glob("*.yaml")):
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        if bare_name(tree.get("source", {}).get("_target_")) == bare_name(target):
            return path.stem, tree["task"]["display"]
    return None
