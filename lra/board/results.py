"""The results of a board: normalised scores of each mechanism on each task."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..results.bench_record import BenchRecord
from ..results.statistics import mean_over_tasks, normalised
from ..results.summary import Row
from ..results.table import Cell


@dataclass(frozen=True)
class BoardResults:
    """A study with a learning-rate search.

    Args:
        name: name of the study.
        rows: results at the chosen learning rates.
        search: results of the learning-rate search.
        measured: benchmarks, for the costs of mechanisms.
    """

    name: str
    rows: Sequence[Row]
    search: Sequence[Row] = ()
    measured: Sequence[BenchRecord] = ()

    @cached_property
    def tasks(self) -> list[str]:
        """The tasks of the results, in their order."""
        return list(dict.fromkeys(row.task for row in self.rows))

    @cached_property
    def scores(self) -> dict[str, dict[str, np.ndarray]]:
        """Normalised scores by mechanism and task, best mean first, mechanisms without every task last."""
        by_label: dict[str, dict[str, np.ndarray]] = {}
        for row in self.rows:
            by_task = by_label.setdefault(row.label, {})
            by_task[row.task] = normalised_scores(row)

        def order(label: str) -> tuple[int, float]:
            scores = list(by_label[label].values())
            return -len(scores), -float(mean_over_tasks(scores))

        return {label: by_label[label] for label in sorted(by_label, key=order)}

    @cached_property
    def complete(self) -> dict[str, list[np.ndarray]]:
        """Normalised scores on every task, of the mechanisms that have runs on all of them."""
        # Means over different tasks are not comparable.
        complete = {}
        for label, by_task in self.scores.items():
            if len(by_task) == len(self.tasks):
                complete[label] = list(by_task.values())
        return complete


def normalised_scores(row: Row) -> np.ndarray:
    """Return the normalised score of each seed of a row; a failed seed counts as chance."""
    # A failed seed learned nothing.
    finished = [normalised(score, row.chance) for score in row.scores.values()]
    failed = [0.0] * row.num_failed
    return np.array(finished + failed)


def percent_cell(scores: np.ndarray | None) -> Cell:
    """Make a cell of the mean of normalised scores ± their sample standard deviation, in percent."""
    if scores is None:
        return Cell.of(None)
    mean = 100 * float(scores.mean())
    if len(scores) == 1:
        return Cell(text=f"{mean:.1f}", value=mean, n=1)
    std = 100 * float(scores.std(ddof=1))
    return Cell(text=f"{mean:.1f} ± {std:.1f}", value=mean, std=std, n=len(scores))
