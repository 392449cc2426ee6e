"""Runs of a submission by mechanism, and its control: whether it suits them, and which published one replaces it."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from ..attention.controls import Mean
from ..runs import config_file
from ..runs import published as tables
from ..runs.published import Published
from ..runs.reader import CONTROL

# Choices in which a mechanism and its control may differ, in addition to the options of attn. Only softmax attention
# takes the position bias of MEGA; control_fault compares the learning rates.
MECHANISM_CHOICES = ("optim.lr", "optim.own_lr_max", "block.bias")
# Finished seeds that a mechanism or a control needs.
FEWEST_SEEDS = 3
# Class of the control, whatever its label.
CONTROL_TARGET = f"{Mean.__module__}.{Mean.__qualname__}"

# Runs by task and label.
Groups = dict[tuple[str, str], list[Published]]


def by_mechanism(runs: Iterable[Published]) -> Groups:
    """Group runs by task and label."""
    groups: Groups = defaultdict(list)
    for run in runs:
        groups[run.record.task, run.record.label].append(run)
    return dict(sorted(groups.items()))


def is_control(runs: Sequence[Published]) -> bool:
    """Whether the runs of a label are the control; ``label_keys`` may give it another label than mean."""
    return runs[0].choices.get("attn._target_") == CONTROL_TARGET


def count_finished(runs: Iterable[Published]) -> int:
    """Count the runs that ended with a result."""
    return sum(run.record.status == "done" for run in runs)


def labels_of(runs: Iterable[Published]) -> list[str]:
    """Labels of the mechanisms of runs, without the control."""
    groups = by_mechanism(runs)
    return sorted({label for (_, label), of_label in groups.items() if not is_control(of_label)})


def check_control(groups: Groups, rates: Sequence[float]) -> list[str]:
    """Every mechanism has a control on its task, trained with the same settings and at a rate that was tried."""
    reasons = []
    for (task, label), runs in groups.items():
        if is_control(runs):
            continue
        # After a learning-rate search there may be several controls.
        controls = [group[0] for key, group in groups.items() if key[0] == task and is_control(group)]
        if not controls:
            reason = f"{task} has no control; train attn={CONTROL} with the same settings, three seeds"
            # Several mechanisms of a task lack the same control.
            if reason not in reasons:
                reasons.append(reason)
            continue
        faults = [control_fault(runs[0], control, rates) for control in controls]
        if all(faults):
            remedy = f"train attn={CONTROL} with the same settings"
            reasons.append(f"{task} {label} and its control have different settings ({faults[0]}); {remedy}")
    if all(map(is_control, groups.values())):
        reasons.append("there is no mechanism, only the control")
    return reasons


def control_fault(run: Published, control: Published, rates: Sequence[float]) -> str:
    """Describe the settings in which a control differs from a mechanism; empty if it can be compared with it."""
    fault = config_file.difference(shared_choices(control.choices), shared_choices(run.choices))
    control_rate = control.choices["optim.lr"]
    if fault or control_rate in (run.choices["optim.lr"], *rates):
        return fault
    return f"optim.lr: the control's rate {control_rate} is neither the mechanism's rate nor in rates="


def shared_choices(choices: dict[str, Any]) -> dict[str, Any]:
    """Choices in which a mechanism and its control have to agree."""
    shared = {}
    for key, value in choices.items():
        if key not in MECHANISM_CHOICES and not key.startswith("attn."):
            shared[key] = value
    # data.pad=auto compacts the sequences of a compactable mechanism, which does not change its outputs.
    if shared.get("data.pad") == "compact":
        shared["data.pad"] = "batch"
    return shared


def find_published_control(runs: Sequence[Published], rates: Sequence[float]) -> list[Published]:
    """Find published runs of the control with the same settings, for every task of a submission that has no control.

    Args:
        runs: runs of the submission.
        rates: learning rates that were tried.

    Returns:
        All seeds of one control for each such task; none for a task without a published control that suits it.
    """
    groups = by_mechanism(runs)
    tasks_with_control = {task for (task, _), of_label in groups.items() if is_control(of_label)}
    found = []
    for task in sorted({task for task, _ in groups} - tasks_with_control):
        mechanisms = [of_label[0] for key, of_label in groups.items() if key[0] == task]
        for control in published_controls(task, mechanisms[0].choices["optim.lr"]):
            faults = [control_fault(mechanism, control[0], rates) for mechanism in mechanisms]
            if not any(faults):
                found += control
                break
    return found


def published_reruns(control: Sequence[Published]) -> list[Published]:
    """Find published runs that have the configuration of a submitted control; none if no study has them.

    Args:
        control: runs of the control on one task.
    """
    for runs in published_controls(control[0].record.task, control[0].choices["optim.lr"]):
        # Devices, threads and folders are not choices.
        if not config_file.difference(control[0].choices, runs[0].choices):
            return runs
    return []


def published_controls(task: str, rate: float) -> list[list[Published]]:
    """List the published controls of a task with enough seeds, those at one learning rate first."""
    controls = []
    for study in tables.studies(tables.HOME):
        for (of_task, _), runs in by_mechanism(tables.read(study).values()).items():
            if of_task == task and is_control(runs) and count_finished(runs) >= FEWEST_SEEDS:
                controls.append(runs)
    return sorted(controls, key=lambda runs: runs[0].choices["optim.lr"] != rate)
