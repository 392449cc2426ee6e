"""Restore the experiment, the model and the data of a run from its directory."""

from pathlib import Path
from typing import Any

import yaml

from ..config import CONF
from ..config.experiment import Experiment
from ..data.datamodule import TaskData
from ..model.classifier import Classifier
from ..options import flatten
from ..runs import checkpoint, config_file
from ..runs.config_file import NAME
from ..runs.run_dir import RunDir

# Options of the machine, which config.yaml does not hold.
MACHINE_OPTIONS = {"device": "auto", "devices": 1, "compile": False, "threads": None}


def restore_experiment(run: RunDir, root: Path | str) -> Experiment:
    """Restore the experiment from which ``lra.train`` built the model and the data, with padded batches.

    Args:
        run: the run.
        root: folder of the data, which ``config.yaml`` does not hold.

    Returns:
        The experiment with this seed alone. ``task.display`` is None if no task of conf has the source. Options that
        ``config.yaml`` does not hold are ``MACHINE_OPTIONS``; evaluation has the batch size of the training.

    Raises:
        ValueError: the choices do not belong to a run.
    """
    # The weights belong to the class of the training, not to a later version of it.
    if run.record:
        config_file.check_custom_code(run.path, run.choices, run.record.sources, remedy="restore that version")
    try:
        provenance = _provenance(run)
        options = {key: value for key, value in run.choices.items() if key not in provenance}
        tree = unflatten(options)

        # Find the task of conf with this source: it gives the display, and the command in messages about missing data.
        source = tree["source"]
        task, display = _task_of(source["_target_"]) or (tree["task"]["name"], None)
        # display=null does not parse: "bytes" stands in for it, and the real value is set below.
        tree["task"]["display"] = display or "bytes"
        tree["data_overrides"] = [f"task={task}"]
        for key, value in source.items():
            if key[0] != "_" and value is not None:
                tree["data_overrides"].append(f"source.{key}={value}")

        # The data that the run was trained on, wherever their files were.
        tree["provenance"] = {key.removeprefix("provenance."): value for key, value in provenance.items()}

        # Options of the machine, and padded sequences.
        tree["data"] |= {"root": root, "eval_batch": tree["optim"]["batch"]}
        if tree["data"]["pad"] in ("none", "compact"):
            tree["data"]["pad"] = "batch"
        tree["trainer"] |= MACHINE_OPTIONS

        tree |= _names(run) | {"runs": str(run.path), "seeds": [run.seed]}
        experiment = Experiment.parse(tree)
        return experiment.replace(task=experiment.task.replace(display=display))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{run.path / NAME} is not the configuration of a run ({reason})") from None


def _names(run: RunDir) -> dict[str, str]:
    """Return label, study and budget of a run: from its record, else from its path <study>/<task>/<label>/seed-<k>."""
    if run.record:
        return {name: getattr(run.record, name) for name in ("label", "study", "budget")}
    # A path with fewer folders gives "unknown".
    folders = ("unknown",) * 3 + run.path.absolute().parts[1:-1]
    study, _, label = folders[-3:]
    return {"label": label, "study": study, "budget": "unknown"}


def check_data(run: RunDir, provenance: dict) -> None:
    """Raise ValueError if the data on which a run was trained have another provenance."""
    difference = config_file.difference(_provenance(run), flatten({"provenance": provenance}))
    if difference:
        raise ValueError(f"{run.path} was trained on other data ({difference})")


def _provenance(run: RunDir) -> dict[str, Any]:
    """The flat provenance of the data on which a run was trained."""
    return {key: value for key, value in run.choices.items() if key.startswith("provenance.")}


def load_best_model(run: RunDir, experiment: Experiment) -> Classifier:
    """Build the model with the best weights, in eval mode on the CPU.

    Args:
        run: run with the weights.
        experiment: experiment of the model, see ``restore_experiment``.

    Raises:
        ValueError: the weights are missing, damaged or of another model.
    """
    model = experiment.classifier()
    checkpoint.load_weights(model, run.weights)
    return model.eval()


def load_model_and_data(run: RunDir, experiment: Experiment) -> tuple[Classifier, TaskData]:
    """Build the best model of a run and its data.

    Raises:
        ValueError: the mechanism cannot run here, weights or data are missing, damaged or of another model, or the run
            was trained on other data.
    """
    reason = experiment.unavailable
    if reason:
        raise ValueError(reason)
    if not run.weights.exists():
        reason = "the run has not reached its first evaluation, or was copied without its weights"
        raise ValueError(f"{run.path} has no {run.weights.name}: {reason}")
    # The data must have the provenance that the run recorded.
    data = experiment.task_data()
    data.setup()
    check_data(run, data.source.provenance)
    return load_best_model(run, experiment), data


def unflatten(flat: dict[str, Any]) -> dict[str, Any]:
    """Build a tree from dotted keys: {"a.b": 1} -> {"a": {"b": 1}}."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = value
    return tree


def _task_of(target: str) -> tuple[str, str] | None:
    """The first task of conf whose source is of this class, and its ``display``."""
    folder = CONF / "task"
    for path in sorted(folder.glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        tree = yaml.safe_load(text)
        if tree.get("source", {}).get("_target_") == target:
            return path.stem, tree["task"]["display"]
    return None
