"""The results of a board: normalised scores, ranking of the mechanisms, and steps until they leave the plateau."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np

from ..results.bench_record import BenchRecord
from ..results.palette import CONTROL_FAMILY, EXACT, family
from ..results.statistics import (
    SOLVED,
    Scores,
    bootstrap_interval,
    holm,
    interquartile_mean,
    mean_interval,
    mean_over_tasks,
    normalised,
    permutation_test,
)
from ..results.summary import Row
from ..results.table import Cell, Table, TableRow, frame
from ..runs import reader

MEANS = ("score", "IQM")
ABOUT = (
    "Normalised scores (chance = 0, perfect = 100): mean over tasks and seeds with a 95 % t interval over the seeds of "
    "each task, and interquartile mean (IQM, the middle half of the runs) with a 95 % bootstrap interval stratified by "
    "task, which is too narrow with few seeds. A failed seed counts as chance, or as the best constant answer if that "
    f"is lower. Solved: seeds that score at least {100 * SOLVED:.0f}; p: permutation test within tasks against "
    f"{EXACT} and against the control with the highest score, whose block may differ from the mechanism's, with "
    "Holm's correction."
)
# A run has left the plateau from this normalised validation score on.
PLATEAU = 0.2
PLATEAU_ABOUT = (
    f"Step of the first evaluation with a normalised validation score of at least {100 * PLATEAU:.0f}, median over the "
    "seeds that reach it; (k/n): k of n seeds do. Mechanisms that never do are left out: a longer training may "
    "help them."
)


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
        # Means over different tasks are not comparable. Rows are sorted by task, so the order of tasks is the same.
        complete = {}
        for label, by_task in self.scores.items():
            if len(by_task) == len(self.tasks):
                complete[label] = list(by_task.values())
        return complete


def normalised_scores(row: Row) -> np.ndarray:
    """Return the normalised score of each seed of a row.

    A failed seed counts as chance, or as the constant answer if that is lower: a trained model may end far below
    chance, and a run that diverges is no better.
    """
    finished = [normalised(score, row.chance) for score in row.scores.values()]
    constant = min(r.constant_baseline for r in row.runs.values())
    failed_score = min(0.0, normalised(constant, row.chance))
    failed = [failed_score] * row.num_failed
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


def ranking_table(board: BoardResults) -> Table:
    """Make the table of mechanisms; those without runs on every task come last and have no score and no test."""
    # The order is by score, so the first control is the best one.
    best_control = next((label for label in board.complete if family(label) == CONTROL_FAMILY), None)
    p_values = {}
    for reference in (EXACT, best_control):
        p_values[reference] = _p_values(board.complete, reference)

    # One row for each mechanism: means, tasks, counts, p-values.
    lines: list[TableRow] = []
    for label, by_task in board.scores.items():
        scores = np.concatenate(list(by_task.values()))
        task_cells = [percent_cell(by_task.get(task)) for task in board.tasks]
        p_cells = []
        for reference in (EXACT, best_control):
            p = p_values[reference].get(label)
            p_cells.append(Cell.of(p, "{:.3f}".format))
        cells = [
            *_mean_cells(board, label),
            *task_cells,
            _solved_cell(scores),
            _collapsed_cell(board, label, len(scores)),
            *p_cells,
        ]
        lines.append([label, *cells])
    p_columns = (f"p ({EXACT})", f"p ({best_control or 'control'})")
    head = ("mechanism", *MEANS, *board.tasks, "solved", "collapsed", *p_columns)
    keys = [(board.name, label, "") for label in board.scores]
    return Table(
        name=f"board/{board.name}",
        title=f"{board.name}: mechanisms",
        about=ABOUT,
        cells=frame(head, lines, keys),
    )


def mean_cell(scores: Scores) -> Cell:
    """Make a cell of the mean of normalised scores over tasks with its t interval, in percent.

    Args:
        scores: normalised scores of each task, (seeds,). With a single seed of a task there is no interval.
    """
    mean = float(mean_over_tasks(scores))
    return _interval_cell(mean, mean_interval(scores), num_runs=sum(map(len, scores)))


def iqm_cell(scores: Scores) -> Cell:
    """Make a cell of the interquartile mean of normalised scores with its bootstrap interval, in percent.

    Args:
        scores: normalised scores of each task, (seeds,). With a single seed of a task there is no interval.
    """
    iqm = float(interquartile_mean(scores))
    ends = bootstrap_interval(scores, interquartile_mean) if min(map(len, scores)) > 1 else None
    return _interval_cell(iqm, ends, num_runs=sum(map(len, scores)))


def _interval_cell(score: float, ends: tuple[float, float] | None, num_runs: int) -> Cell:
    """Make a cell of a normalised score, with the ends of its interval if it has one.

    An interval without width is left out: equal scores do not prove that others would be equal too.
    """
    value = 100 * score
    if ends is None or ends[0] == ends[1]:
        return Cell(text=f"{value:.1f}", value=value, n=num_runs)
    low = 100 * ends[0]
    high = 100 * ends[1]
    return Cell(text=f"{value:.1f} ({low:.1f} to {high:.1f})", value=value, low=low, high=high, n=num_runs)


def _mean_cells(board: BoardResults, label: str) -> list[Cell]:
    if label not in board.complete:
        return [Cell.of(None) for _ in MEANS]
    scores = board.complete[label]
    return [mean_cell(scores), iqm_cell(scores)]


def _solved_cell(scores: np.ndarray) -> Cell:
    num_solved = int((scores >= SOLVED).sum())
    return Cell(text=f"{num_solved}/{len(scores)}", value=num_solved / len(scores))


def _collapsed_cell(board: BoardResults, label: str, num_runs: int) -> Cell:
    num_collapsed = 0
    for row in board.rows:
        if row.label == label:
            num_collapsed += len(row.collapsed)
    text = f"{num_collapsed}/{num_runs}" if num_collapsed else "0"
    return Cell(text=text, value=num_collapsed)


def _p_values(complete: dict[str, list[np.ndarray]], reference: str | None) -> dict[str, float]:
    """Test each mechanism against a reference, with Holm's correction; empty if the reference lacks a task."""
    if reference not in complete:
        return {}
    p_values = {}
    for label, scores in complete.items():
        if label != reference:
            p_values[label] = permutation_test(scores, complete[reference])
    return holm(p_values)


def plateau_table(board: BoardResults) -> Table | None:
    """Make a row for each mechanism that left the plateau of a task; None if no run did."""
    cells = {(row.label, row.task): _plateau_cell(row) for row in board.rows}
    left_plateau = {label for (label, _), cell in cells.items() if cell.value}
    labels = [label for label in board.scores if label in left_plateau]
    if not labels:
        return None

    head = ["mechanism"]
    for task in board.tasks:
        longest = 0
        for row in board.rows:
            if row.task == task:
                longest = max(longest, *(r.steps for r in row.runs.values()))
        head.append(f"{task}, of {longest:,}")
    lines: list[TableRow] = []
    for label in labels:
        row_cells = [cells.get((label, task), Cell.of(None)) for task in board.tasks]
        lines.append([label, *row_cells])
    keys = [(board.name, label, "") for label in labels]
    return Table(
        name=f"plateaus/{board.name}",
        title=f"{board.name}: steps until the plateau is left",
        about=PLATEAU_ABOUT,
        cells=frame(head, lines, keys),
    )


def _plateau_cell(row: Row) -> Cell:
    """Make a cell of the median step at which the seeds of a row leave the plateau."""
    steps = []
    for folder in row.runs:
        # The report already lists a damaged file.
        with suppress(ValueError):
            curve = reader.read_curves(folder).get("val", {})
            reached = [step for step, score in curve.items() if normalised(score, row.chance) >= PLATEAU]
            # The first evaluation above the plateau.
            steps += reached[:1]

    num_seeds = len(row.runs)
    count = f" ({len(steps)}/{num_seeds})" if len(steps) < num_seeds else ""
    if not steps:
        return Cell(text=f"-{count}", n=num_seeds)
    step = median(steps)
    return Cell(text=f"{step:,.0f}{count}", value=step, n=num_seeds)
