"""The score of each mechanism of a board over its cost."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .. import figures
from ..figures import Picture
from ..palette import CONTROL, INK, SOFT, family, look
from ..statistics import mean_over_tasks
from .costs import costs
from .ranking import with_interval
from .results import BoardResults

# Inches, without the legend.
HEIGHT = 4
ERROR_BARS = {"capsize": 2, "lw": 1, "ms": 6, "linestyle": "none"}


class Point(NamedTuple):
    """A mechanism: milliseconds, None if it was not timed, and its score with an interval, in percent."""

    label: str
    ms: float | None
    score: float
    low: float
    high: float


def picture(board: BoardResults) -> Picture | None:
    """Make the picture of a board; None if no mechanism except controls is timed and has runs on every task."""
    ms, axis = costs(board)
    points = []
    for label, scores in board.complete.items():
        cell = with_interval(scores, mean_over_tasks)
        points.append(Point(label, ms.get(label), cell.value, cell.low, cell.high))
    if not _timed(points):
        return None
    caption = f"score of each mechanism of {board.name} over its cost, with 95 % intervals; controls are lines"
    return Picture(f"{board.name}/scores", caption, draw, {axis: points})


def not_timed(board: BoardResults) -> list[str]:
    """List the mechanisms that the picture leaves out, because no benchmark timed them."""
    ms, _ = costs(board)
    return [label for label in board.complete if label not in ms and family(label) != CONTROL]


def _timed(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if point.ms is not None and family(point.label) != CONTROL]


@rc_context(figures.PRINT)
def draw(panels: Mapping[str, Sequence[Point]], width: float = figures.TEXT) -> Figure:
    """Draw scores over costs; a control is a line, a mechanism without a cost is left out.

    Args:
        panels: the mechanisms by the name of their cost.
        width: width in inches.
    """
    ((axis, points),) = panels.items()
    figure = Figure(figsize=(width, HEIGHT), layout="constrained")
    axes = figure.subplots()
    axes.margins(0.08)
    timed_points = _timed(points)
    # Points with error bars: the interval of the score.
    for point in timed_points:
        below = max(0, point.score - point.low)
        above = max(0, point.high - point.score)
        axes.errorbar(point.ms, point.score, yerr=[[below], [above]], **ERROR_BARS, **look(family(point.label)))
        axes.text(point.ms, point.score, point.label, color=INK)
    _draw_controls(axes, [point for point in points if family(point.label) == CONTROL])
    axes.set(xscale="log", xlabel=axis, ylabel="normalised score (chance = 0, perfect = 100)")
    figures.families(figure, [point.label for point in timed_points])
    figures.place_labels(figure, leaders=True)
    return figure


def _draw_controls(axes: Axes, controls: Sequence[Point]) -> None:
    """Draw controls as lines; their names are side by side, since the lines may be close."""
    for i, point in enumerate(controls):
        axes.axhline(point.score, color=SOFT, lw=0.8, ls=":", zorder=1)
        position = {"xy": (0.16 * i, point.score), "xycoords": ("axes fraction", "data")}
        axes.annotate(point.label, **position, xytext=(3, 2), textcoords="offset points", color=SOFT, size=7)
