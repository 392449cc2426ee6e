"""Runs of a submission, grouped by task and label: the seeds of its mechanisms and of its control."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from ..attention.controls import Mean
from ..runs.published import Published

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
