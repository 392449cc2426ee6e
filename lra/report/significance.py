"""Scores over seeds, the test between two sets of them, the marks of a column, and gains over a control."""

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from statistics import mean, stdev, variance

from scipy import stats

from .table import Cell

LEVEL = 0.05
APART = 2  # standard errors
MARKS = (
    f"Bold: the highest mean. ≈: not told apart from it at {LEVEL:.0%} by a two-sided t-test, paired if both have "
    "the same seeds, else Welch's, without correction for the number of comparisons; no mark: worse, or too few seeds "
    "for a test."
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
    """Test whether two sets of scores differ: a two-sided t-test, paired for the same seeds, else Welch's.

    Args:
        a, b: scores by seed.

    Returns:
        The p-value, None if a set has fewer than two seeds.
    """
    if min(len(a), len(b)) < 2:
        return None
    paired = a.keys() == b.keys()
    samples = [[a[seed] - b[seed] for seed in a]] if paired else [list(a.values()), list(b.values())]
    if not any(map(variance, samples)):  # t is infinite, or 0 / 0
        return 1.0 if mean(a.values()) == mean(b.values()) else 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # for differences that hardly vary
        test = stats.ttest_1samp(*samples, 0) if paired else stats.ttest_ind(*samples, equal_var=False)
    return float(test.pvalue)


def mark(cells: Sequence[Cell], scores: Sequence[Mapping[int, float]]) -> list[Cell]:
    """Mark the best cell of a column, and those that the test does not tell apart from it as tied.

    Equal means are all the best. A column with fewer than two values has no best.

    Args:
        cells: cells of the column.
        scores: scores by seed of each cell; empty for a cell without seeds, which is never tied.
    """
    present = [cell.value is not None for cell in cells]
    if sum(present) < 2:
        return list(cells)
    top = max(cell.value for cell in compress(cells, present))
    best = next(s for cell, s in zip(cells, scores, strict=True) if cell.value == top)
    marked = []
    for cell, own_scores, has_value in zip(cells, scores, present, strict=True):
        if has_value and cell.value == top:
            cell = replace(cell, mark="best")
        elif has_value and (p := p_value(own_scores, best)) is not None:
            cell = replace(cell, mark="tied" if p >= LEVEL else "", note=f"{cell.note}; p = {p:.2g} against the best")
        marked.append(cell)
    return marked


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
