"""The picture of a board: score of each mechanism over its cost, families by colour and marker, controls as lines."""

import itertools
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure

from ..runs.bench_record import BenchRecord
from . import figures
from .families import CONTROL, family, key, look
from .palette import INK, SOFT
from .standings import standings
from .statistics import interval, mean_over_tasks
from .strips import Picture
from .summary import Row

N = 4096  # tokens at which mechanisms are timed
HEIGHT = 4  # inches, without the legend


class Point(NamedTuple):
    """A mechanism: milliseconds, None if it was not timed, and its score with an interval, in percent."""

    label: str
    ms: float | None
    score: float
    low: float
    high: float


def costs(rows: Sequence[Row], measured: Sequence[BenchRecord]) -> tuple[dict[str, float], str]:
    """The milliseconds of each label and what they are.

    Args:
        rows: results on the board.
        measured: benchmarks; the first that timed two of the labels at 4,096 tokens in training is taken.

    Returns:
        Milliseconds by label, and the name of the axis: of a benchmark, else the median step of the runs themselves.
    """
    labels = {row.label for row in rows}
    for record in measured:
        for what in ("block", "attention"):
            timed = {
                r.mechanism: r.ms
                for r in record.rows
                if (r.n, r.what, r.mode) == (N, what, "training") and r.ms and r.mechanism in labels
            }
            if len(timed) > 1:
                return timed, f"ms, forward and backward of {what} at {N:,} tokens ({record.machine.hardware})"
    times: dict[str, list[float]] = {}
    for row in rows:
        if row.ms is not None:
            times.setdefault(row.label, []).append(row.ms)
    return {
        label: median(values) for label, values in times.items()
    }, "ms a step of the board's tasks, median over tasks"


def picture(name: str, rows: Sequence[Row], measured: Sequence[BenchRecord]) -> Picture:
    """Compute the picture of a board; it has no chart if no mechanism but controls has a cost and runs on every task.

    Args:
        name: name of the board.
        rows: its results.
        measured: benchmarks.
    """
    ms, axis = costs(rows, measured)
    tasks, points = {row.task for row in rows}, []
    for s in standings(rows):
        if s.shares.keys() == tasks:
            scores = list(s.shares.values())
            values = (100 * share for share in (float(mean_over_tasks(scores)), *interval(scores, mean_over_tasks)))
            points.append(Point(s.label, ms.get(s.label), *values))
    caption = f"score of each mechanism of {name} over its cost, with 95 % intervals; controls are lines"
    drawn = any(point.ms is not None and family(point.label) != CONTROL for point in points)
    return Picture(f"{name}-scores", caption, draw, {axis: points} if drawn else {})


@rc_context(figures.PRINT)
def draw(panels: Mapping[str, Sequence[Point]], width: float = figures.TEXT) -> Figure:
    """Draw the picture; a mechanism without a cost is left out, a control is a line.

    Args:
        panels: the mechanisms by the name of their cost.
        width: width in inches.
    """
    ((axis, points),) = panels.items()
    figure = Figure(figsize=(width, HEIGHT), layout="constrained")
    axes = figure.subplots()
    axes.margins(0.08)
    places = itertools.count(0.0, 0.1)  # of the names of controls, side by side since their lines may be close
    for point in points:
        kind = family(point.label)
        if kind == CONTROL:
            axes.axhline(point.score, color=SOFT, lw=0.8, ls=":", zorder=1)
            axes.annotate(point.label, (next(places), point.score), xycoords=("axes fraction", "data"), xytext=(3, 2),
                          color=SOFT, textcoords="offset points", ha="left", size=7, parse_math=False)  # fmt: skip
        elif point.ms is not None:
            reach = [[max(0, point.score - point.low)], [max(0, point.high - point.score)]]
            axes.errorbar(point.ms, point.score, yerr=reach, capsize=2, lw=1, ms=6, linestyle="none", **look(kind))
            axes.text(point.ms, point.score, point.label, color=INK, parse_math=False)
    axes.set(xscale="log", xlabel=axis, ylabel="score: share of the way from floor to 100, mean over tasks, %")
    key(figure, [point.label for point in points if point.ms is not None and family(point.label) != CONTROL])
    figures.settle(figure, arrowstyle="-", color=SOFT, lw=0.5)
    return figure
