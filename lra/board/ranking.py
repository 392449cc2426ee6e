"""The ranking of the mechanisms of a board over all tasks."""

from collections.abc import Callable, Sequence

import numpy as np

from ..results.palette import CONTROLS, EXACT
from ..results.statistics import SOLVED, holm, interquartile_mean, interval, mean_over_tasks, permutation_test
from ..results.table import Cell, Table, frame
from .results import BoardResults, percent_cell

MEANS = {"score": mean_over_tasks, "IQM": interquartile_mean}
ABOUT = (
    "Normalised scores (chance = 0, perfect = 100): mean over tasks and seeds, and interquartile mean (IQM, the middle "
    "half of the runs), with 95 % bootstrap intervals stratified by task; a failed seed counts as chance. Solved: "
    f"seeds of at least {100 * SOLVED:.0f}; p: permutation test within tasks against {EXACT} and the best control, "
    "with Holm's correction."
)


def ranking_table(board: BoardResults) -> Table:
    """Make the table of mechanisms; those without runs on every task come last and have no score and no test."""
    # The order is by score, so the first control is the best one.
    best_control = next((label for label in board.complete if label in CONTROLS), None)
    p_values = {}
    for reference in (EXACT, best_control):
        p_values[reference] = _p_values(board.complete, reference)

    # One row for each mechanism: means, tasks, counts, p-values.
    lines: list[list[Cell | str]] = []
    for label, by_task in board.scores.items():
        scores = np.concatenate(list(by_task.values()))
        lines.append(
            [
                label,
                *_mean_cells(board, label),
                *(percent_cell(by_task.get(task)) for task in board.tasks),
                _solved_cell(scores),
                _collapsed_cell(board, label, len(scores)),
                *(Cell.of(p_values[reference].get(label), "{:.3f}".format) for reference in (EXACT, best_control)),
            ]
        )
    p_columns = (f"p ({EXACT})", f"p ({best_control or 'control'})")
    head = ("mechanism", *MEANS, *board.tasks, "solved", "collapsed", *p_columns)
    keys = [(board.name, label, "") for label in board.scores]
    return Table(
        name=f"board/{board.name}",
        title=f"{board.name}: mechanisms",
        about=ABOUT,
        cells=frame(head, lines, keys),
    )


def with_interval(scores: Sequence[np.ndarray], statistic: Callable) -> Cell:
    """Make a cell of a mean of normalised scores with its interval, in percent.

    Args:
        scores: normalised scores of each task, (seeds,).
        statistic: ``mean_over_tasks`` or ``interquartile_mean``.
    """
    mean = 100 * float(statistic(scores))
    low, high = interval(scores, statistic)
    low *= 100
    high *= 100
    num_runs = sum(map(len, scores))
    return Cell(text=f"{mean:.1f} ({low:.1f} to {high:.1f})", value=mean, low=low, high=high, n=num_runs)


def _mean_cells(board: BoardResults, label: str) -> list[Cell]:
    if label not in board.complete:
        return [Cell.of(None) for _ in MEANS]
    return [with_interval(board.complete[label], statistic) for statistic in MEANS.values()]


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
    """Test each mechanism against a reference; none if the reference lacks a task."""
    if reference not in complete:
        return {}
    p_values = {}
    for label, scores in complete.items():
        if label != reference:
            p_values[label] = permutation_test(scores, complete[reference])
    return holm(p_values)
