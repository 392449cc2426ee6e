"""The cost of the mechanisms of a board, at the token budget at which they were scored, and their scores over it."""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..results import figures
from ..results.bench_record import BenchRecord
from ..results.figures import Picture
from ..results.palette import CONTROL_FAMILY, INK, SOFT, family, look
from .results import BoardResults, mean_cell

# Number of tokens at which mechanisms are timed.
LENGTH = 4096
# The tasks of the board give every mechanism a token budget of length / 8 (conf/experiment/recipes/board.yaml).
LENGTH_PER_BUDGET = 8
# Name of the benchmark record in the folder of the published board.
FILE = "costs.json"
TOKEN_BUDGET = re.compile(r"\+*budgets\.(\w+)\.allowance=(\d+)")
# Inches, without the legend.
HEIGHT = 4
ERROR_BARS: dict[str, Any] = {"capsize": 2, "lw": 1, "ms": 6, "linestyle": "none"}


class Point(NamedTuple):
    """A mechanism: milliseconds, None if it was not timed, and its score with an interval, in percent."""

    label: str
    ms: float | None
    score: float
    low: float | None
    high: float | None


def costs(board: BoardResults) -> tuple[dict[str, float], str]:
    """Find the milliseconds of each mechanism.

    Only benchmarks of forward and backward passes at 4,096 tokens with the token budget of the board count. Without
    one, the steps of the runs themselves are used.

    Returns:
        Milliseconds by label, and the name of the axis.
    """
    budget = LENGTH // LENGTH_PER_BUDGET
    for record, operation in itertools.product(board.measured, ("block", "attention")):
        if not has_board_budget(record):
            continue
        # Only times on the same shape of inputs are comparable. Of several shapes, take the one with most mechanisms.
        times_by_shape: dict[tuple, dict[str, float]] = defaultdict(dict)
        for row in record.rows:
            is_measured_kind = (row.n, row.what, row.mode) == (LENGTH, operation, "training")
            if is_measured_kind and row.ms and row.mechanism in board.scores:
                shape = (row.batch, row.heads, row.head_dim, row.dtype)
                times_by_shape[shape][row.mechanism] = row.ms
        times = max(times_by_shape.values(), key=len, default={})
        if len(times) > 1:
            clock = " of CPU time" if record.choices.get("clock") == "cpu" else ""
            axis = f"ms{clock}, forward and backward of {operation} at {LENGTH:,} tokens, token budget {budget}"
            return times, axis
    return _step_times(board), "ms per step on the tasks of the board, median over tasks"


def has_board_budget(record: BenchRecord) -> bool:
    """Whether a benchmark gave the mechanisms the token budget of the board at 4,096 tokens."""
    budget_name = record.choices.get("budget")
    for override in record.choices.get("overrides") or ():
        match = TOKEN_BUDGET.fullmatch(override)
        if match and match[1] == budget_name:
            token_budget = int(match[2])
            return token_budget * LENGTH_PER_BUDGET == LENGTH
    return False


def _step_times(board: BoardResults) -> dict[str, float]:
    """Return the median step time of each mechanism over the tasks, on the device with the most results."""
    timed_rows = [row for row in board.rows if row.ms is not None]
    devices = Counter(row.ms_device for row in timed_rows)
    device = max(devices, key=lambda name: (devices[name], name), default="")
    times = {}
    for label in board.scores:
        values = [row.ms for row in timed_rows if row.label == label and row.ms_device == device]
        if values:
            times[label] = median(values)
    return times


def picture(board: BoardResults) -> Picture | None:
    """Make the picture of a board; None if no mechanism except controls is timed and has runs on every task."""
    ms, axis = costs(board)
    points = []
    for label, scores in board.complete.items():
        cell = mean_cell(scores)
        points.append(Point(label, ms.get(label), cell.value, cell.low, cell.high))
    if not _timed(points):
        return None
    caption = f"score of each mechanism of {board.name} over its cost, with 95 % intervals; controls are lines"
    return Picture(f"{board.name}/scores", caption, draw, {axis: points})


def not_timed(board: BoardResults) -> list[str]:
    """List the mechanisms that the picture leaves out, because they have no time."""
    ms, _ = costs(board)
    return [label for label in board.complete if label not in ms and family(label) != CONTROL_FAMILY]


def _timed(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if point.ms is not None and family(point.label) != CONTROL_FAMILY]


@rc_context(figures.PRINT)
def draw(panels: Mapping[str, Sequence[Point]], width: float = figures.TEXT_WIDTH) -> Figure:
    """Draw scores over costs; a control is a line, a mechanism without a cost is left out.

    Args:
        panels: the mechanisms by the name of their cost.
        width: width in inches.
    """
    ((axis, points),) = panels.items()
    figure = Figure(figsize=(width, HEIGHT), layout="constrained")
    axes = figure.subplots()
    # Room for the labels.
    axes.margins(0.08)
    timed_points = _timed(points)
    # Points with error bars: the interval of the score.
    for point in timed_points:
        bars = None
        if point.low is not None and point.high is not None:
            bars = [[max(0, point.score - point.low)], [max(0, point.high - point.score)]]
        style = ERROR_BARS | look(family(point.label))
        axes.errorbar(point.ms, point.score, yerr=bars, **style)
        axes.text(point.ms, point.score, point.label, color=INK)
    controls = [point for point in points if family(point.label) == CONTROL_FAMILY]
    _draw_controls(axes, controls)
    axes.set(xscale="log", xlabel=axis, ylabel="normalised score (chance = 0, perfect = 100)")
    labels = [point.label for point in timed_points]
    figures.add_family_legend(figure, labels)
    figures.place_labels(figure, leaders=True)
    return figure


def _draw_controls(axes: Axes, controls: Sequence[Point]) -> None:
    """Draw controls as lines; their names are side by side, since the lines may be close."""
    for i, point in enumerate(controls):
        axes.axhline(point.score, color=SOFT, lw=0.8, ls=":", zorder=1)
        axes.annotate(
            point.label,
            xy=(0.16 * i, point.score),
            xycoords=("axes fraction", "data"),
            xytext=(3, 2),
            textcoords="offset points",
            color=SOFT,
            size=7,
        )
