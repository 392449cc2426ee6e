"""Time and memory at one n, as bars."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from .. import figures
from ..bench_groups import Group, number
from ..palette import COLOURS


def draw(group: Group, width: float) -> Figure:
    """Draw a bar for each contestant with a time, the slowest first.

    Args:
        group: rows of a benchmark with one length.
        width: width in inches.
    """
    # There is one length, so that each contestant has one row.
    first_rows = {name: rows[0] for name, rows in group.over_n().items() if rows}
    names = sorted(first_rows, key=lambda name: -first_rows[name].ms)
    figure, (left, right) = figures.grid(("", ""), width, height=bar_height(group), sharey=True)
    _draw_bars(left, names, [first_rows[name].ms for name in names], "ms")
    _draw_bars(right, names, [first_rows[name].peak_bytes / 2**20 for name in names], "MB")
    return figure


def _draw_bars(axes: Axes, names: Sequence[str], values: Sequence[float], unit: str) -> None:
    bars = axes.barh(names, values, color=COLOURS[0][0])
    axes.bar_label(bars, [number(value) for value in values], padding=2)
    axes.xaxis.set_major_formatter(FuncFormatter(figures.short))
    axes.set(xlabel=unit)
    axes.grid(visible=False)
    axes.margins(x=0.12, y=0.01)


def bar_height(group: Group) -> float:
    """Return the height in inches of a chart with a row for each contestant."""
    return 1 + 0.16 * len(group.over_n())
