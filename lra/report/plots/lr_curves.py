"""Validation score over the learning rate, a line for each mechanism."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...results import figures
from ...results.lr_search import BUDGET, trials
from ...results.palette import COLOURED, CONTROLS, EXACT, Palette
from ...results.summary import Row


class LrCurve(NamedTuple):
    """The mean validation scores of a label on one task at each learning rate; None without a finished seed."""

    label: str
    rates: list[float]
    val: list[float | None]


def by_task(rows: list[Row]) -> dict[str, list[LrCurve]]:
    """List the curves of each task, of labels with several learning rates."""
    curves: dict[str, list[LrCurve]] = defaultdict(list)
    for (label, task), by_rate in trials(rows).items():
        scores: dict[float | None, float | None] = {}
        # The budget's rate may have been tried in a search too; the row with more seeds counts, and comes last.
        for rate, row in sorted(by_rate.items(), key=lambda item: item[1].n):
            scores[_learning_rate(rate, row)] = row.val
        # A record may not contain the budget's learning rate.
        rates = sorted(rate for rate in scores if rate is not None)
        if len(rates) > 1:
            values = [scores[rate] for rate in rates]
            curves[task].append(LrCurve(label, rates, values))
    return curves


def _learning_rate(rate: str, row: Row) -> float | None:
    if rate != BUDGET:
        return float(rate)
    first_record = next(iter(row.runs.values()))
    return first_record.lr


def draw(axes: Axes, curves: Sequence[LrCurve], palette: Palette) -> None:
    """Draw a line for each label; a learning rate without a score interrupts it."""
    for curve in curves:
        axes.plot(curve.rates, curve.val, marker="o", ms=2.5, **palette.line(curve.label))
    figures.set_ticks_and_labels(axes, "learning rate", "validation score")
    axes.set_xscale("log")
    rates = set()
    for curve in curves:
        rates.update(curve.rates)
    ticks = sorted(rates)
    axes.set_xticks(ticks, [f"{rate:g}" for rate in ticks])
    axes.minorticks_off()


def draw_figure(panels: Mapping[str, list[LrCurve]], width: float = figures.TEXT_WIDTH) -> Figure:
    """Draw a chart for each task; of many labels only the references and the best ones have a colour."""
    palette = highlight(panels, _best_score)
    return figures.charts(panels, draw, palette, width)


def _best_score(curve: LrCurve) -> float:
    # A rate without a finished seed counts as zero.
    return max(score or 0.0 for score in curve.val)


def highlight(panels: Mapping[str, list], score: Callable[..., float]) -> Palette:
    """Give a colour to exact attention, the controls and the labels with the best mean scores.

    Args:
        panels: curves of each task.
        score: function that returns the score of a curve.
    """
    scores: dict[str, list[float]] = defaultdict(list)
    for curve in itertools.chain(*panels.values()):
        curve_score = score(curve)
        scores[curve.label].append(curve_score)
    means = {label: mean(label_scores) for label, label_scores in scores.items()}
    best_first = sorted(means, key=lambda label: -means[label])

    # References get a colour in any case, then the best labels up to the limit.
    references = [label for label in best_first if label in (EXACT, *CONTROLS)]
    others = [label for label in best_first if label not in references]
    coloured = [*references, *others][:COLOURED]
    # Exact attention has the first colour, the others follow by score.
    by_score = [label for label in best_first if label in coloured and label != EXACT]
    if EXACT in coloured:
        by_score.insert(0, EXACT)
    return Palette(by_score)
