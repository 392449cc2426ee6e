"""Scores over seeds, the test between two sets of them, the marks of a column, and gains over a control."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import mean, stdev, variance

from scipy import stats

from .statistics import holm
from .table import Cell

LEVEL = 0.05
APART = 2  # standard errors
MARKS = (
    f"Bold: the highest mean, if Welch's two-sided test at {LEVEL:.0%} with Holm's correction tells it apart from "
    "every other mean of the column. ≈: the highest mean and those not told apart from it. No mark: lower, or too few "
    "seeds for a test."
)


def score(scores: Mapping[int, float], lost: int = 0, collapsed: Collection[int] = ()) -> Cell:
    """Make a cell of test scores: mean ± sample standard deviation over seeds.

    The mean is over all finished seeds, since choosing the good ones afterwards would favour a mechanism that seldom
    trains. The text says how many of them collapsed, and the note has the mean of the others.

    Args:
        scores: scores by seed.
        lost: number of seeds without a result, for the note.
        collapsed: seeds that give every example the same answer.
    """
    if not scores:
        return Cell(note=f"{lost} seed{'s' * (lost > 1)} without a result" if lost else "")
    values = list(scores.values())
    std = stdev(values) if len(values) > 1 else None
    text = f"{mean(values):.2f}" + ("" if std is None else f" ± {std:.2f}")
    note = f"n = {len(values)}" + (f", {lost} more without a result" if lost else "")
    if collapsed:
        text += f" (collapsed {len(collapsed)}/{len(values)})"
        if others := [value for seed, value in scores.items() if seed not in collapsed]:
            note += f", {mean(others):.2f} over the {len(others)} that did not collapse"
    return Cell(text=text, value=mean(values), std=std, n=len(values), collapsed=len(collapsed) or None, note=note)


def p_value(a: Mapping[int, float], b: Mapping[int, float]) -> float | None:
    """Test whether two sets of scores differ: Welch's two-sided t-test.

    Seeds are not paired: the same seed of two mechanisms has nothing in common but the order of the examples.

    Args:
        a, b: scores by seed.

    Returns:
        The p-value, None if a set has fewer than two seeds.
    """
    if min(len(a), len(b)) < 2:
        return None
    x, y = list(a.values()), list(b.values())
    if not variance(x) + variance(y):  # t is infinite, or 0 / 0
        return 1.0 if x[0] == y[0] else 0.0
    sides = [part for side in (x, y) for part in (mean(side), stdev(side), len(side))]
    return float(stats.ttest_ind_from_stats(*sides, equal_var=False).pvalue)


def mark(cells: Sequence[Cell], scores: Sequence[Mapping[int, float]]) -> list[Cell]:
    """Mark the highest cell of a column as best if it is told apart from all others, else those near it as tied.

    Args:
        cells: cells of the column.
        scores: scores by seed of each cell; empty for a cell without seeds, which is told apart from nothing.
    """
    present = [i for i, cell in enumerate(cells) if cell.value is not None]
    if len(present) < 2:
        return list(cells)
    top = max(present, key=lambda i: cells[i].value)
    tests = {i: p_value(scores[i], scores[top]) for i in present if i != top}
    p = holm({i: value for i, value in tests.items() if value is not None})
    near = [i for i in p if p[i] >= LEVEL]
    marks = dict.fromkeys([top, *near], "tied") if near else {top: "best"} if p.keys() == tests.keys() else {}
    noted = {i: f"{cells[i].note}; p = {p[i]:.2g} against the highest" for i in p}
    return [replace(cell, mark=marks.get(i, ""), note=noted.get(i, cell.note)) for i, cell in enumerate(cells)]


def difference(scores: Mapping[int, float], control: Mapping[int, float]) -> Cell:
    """Make a cell of the gain over a control: difference of means ± standard error sqrt(s1²/n1 + s2²/n2).

    The seeds of both are taken as independent. A gain below ``APART`` standard errors is marked as tied; with fewer
    than two seeds on either side there is neither error nor mark.

    Args:
        scores: scores by seed.
        control: scores of the control by seed.
    """
    if not scores or not control:
        return Cell()
    value, n = mean(scores.values()) - mean(control.values()), f"n = {len(scores)} and {len(control)}"
    if min(len(scores), len(control)) < 2:
        return Cell(text=f"{value:+.2f}", value=value, note=n)
    error = math.sqrt(sum(variance(side.values()) / len(side) for side in (scores, control)))
    mark = "tied" if abs(value) < APART * error or value == 0 else ""
    return Cell(text=f"{value:+.2f} ± {error:.2f}", value=value, std=error, mark=mark, note=n)
