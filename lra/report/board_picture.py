"""The pictures of a board: the score of each mechanism over its cost, and over published scores."""

import itertools
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure

from . import figures
from .agreement import Pair, pairs
from .figures import Picture
from .palette import CONTROL, INK, SOFT, family, look
from .standings import BoardResults, with_interval
from .statistics import mean_over_tasks

N = 4096  # tokens at which mechanisms are timed
HEIGHT = 4  # inches, without the legend


class Point(NamedTuple):
    """A mechanism: milliseconds, None if it was not timed, and its score with an interval, in percent."""

    label: str
    ms: float | None
    score: float
    low: float
    high: float


def costs(board: BoardResults) -> tuple[dict[str, float], str]:
    """The milliseconds of each label and what they are.

    Returns:
        Milliseconds by label, and the name of the axis: of the first benchmark that timed two of the labels at 4,096
        tokens in training, else the median step of the runs themselves.
    """
    for record, what in itertools.product(board.measured, ("block", "attention")):
        case = [r for r in record.rows if (r.n, r.what, r.mode) == (N, what, "training")]
        timed = {r.mechanism: r.ms for r in case if r.ms and r.mechanism in board.shares}
        if len(timed) > 1:
            return timed, f"ms, forward and backward of {what} at {N:,} tokens ({record.machine.hardware})"
    times = {label: [r.ms for r in board.rows if r.label == label and r.ms is not None] for label in board.shares}
    found = {label: median(values) for label, values in times.items() if values}
    return found, "ms a step of the board's tasks, median over tasks"


def pictures(board: BoardResults) -> list[Picture]:
    """List the pictures of a board; none of scores over costs if no mechanism but controls is timed and complete."""
    ms, axis = costs(board)
    points = []
    for label, scores in board.complete.items():
        cell = with_interval(scores, mean_over_tasks)
        points.append(Point(label, ms.get(label), cell.value, cell.low, cell.high))
    caption = f"score of each mechanism of {board.name} over its cost, with 95 % intervals; controls are lines"
    made = [Picture(f"{board.name}-scores", caption, draw, {axis: points})] if _timed(points) else []
    if panels := {f"{source}, tasks: {tasks}": some for (source, tasks), some in pairs(board).items()}:
        about = f"scores of {board.name} over published accuracies"
        made.append(Picture(f"{board.name}-agreement", about, draw_agreement, panels))
    return made


def _timed(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if point.ms is not None and family(point.label) != CONTROL]


@rc_context(figures.PRINT)
def draw(panels: Mapping[str, Sequence[Point]], width: float = figures.TEXT) -> Figure:
    """Draw scores over costs; a mechanism without a cost is left out, a control is a line.

    Args:
        panels: the mechanisms by the name of their cost.
        width: width in inches.
    """
    ((axis, points),) = panels.items()
    figure = Figure(figsize=(width, HEIGHT), layout="constrained")
    axes = figure.subplots()
    axes.margins(0.08)
    timed = _timed(points)
    for point in timed:
        reach = [[max(0, point.score - point.low)], [max(0, point.high - point.score)]]
        style = {"capsize": 2, "lw": 1, "ms": 6, "linestyle": "none"}
        axes.errorbar(point.ms, point.score, yerr=reach, **style, **look(family(point.label)))
        axes.text(point.ms, point.score, point.label, color=INK)
    # The names of controls stand side by side, since their lines may be close.
    for place, point in enumerate(point for point in points if family(point.label) == CONTROL):
        axes.axhline(point.score, color=SOFT, lw=0.8, ls=":", zorder=1)
        at = {"xy": (0.16 * place, point.score), "xycoords": ("axes fraction", "data")}
        axes.annotate(point.label, **at, xytext=(3, 2), textcoords="offset points", color=SOFT, size=7)
    axes.set(xscale="log", xlabel=axis, ylabel="score: share of the way from floor to 100, mean over tasks, %")
    figures.families(figure, [point.label for point in timed])
    figures.settle(figure, leaders=True)
    return figure


@rc_context(figures.PRINT)
def draw_agreement(panels: Mapping[str, Sequence[Pair]], width: float = figures.TEXT) -> Figure:
    """Draw a point for each mechanism, its score on the board over the published accuracy, a chart for each source."""
    figure, charts = figures.grid(panels, width)
    for axes, some in zip(charts, panels.values(), strict=True):
        for pair in some:
            axes.plot(pair.published, pair.board, linestyle="none", **look(family(pair.label)))
            axes.text(pair.published, pair.board, pair.label, color=INK)
        axes.set(xlabel="published accuracy, %", ylabel="score on the board, %")
    figures.families(figure, [pair.label for some in panels.values() for pair in some])
    figures.settle(figure, leaders=True)
    return figure
