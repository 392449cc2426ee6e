"""Time and memory over n, both axes logarithmic, as in CURformer's Figure 4."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from .. import figures
from ..bench_groups import Group
from ..palette import COLOURED, Palette


def draw(group: Group, width: float) -> Figure:
    """Draw a line for each contestant with a time; of many only the fastest have a colour.

    Args:
        group: rows of a benchmark.
        width: width in inches.
    """
    rows_of = {name: rows for name, rows in group.over_n().items() if rows}
    # The contestants that reach the largest n come first, the fastest of them in front.
    by_time = sorted(rows_of, key=lambda name: (-rows_of[name][-1].n, rows_of[name][-1].ms))
    coloured = by_time if len(by_time) <= COLOURED + 1 else by_time[:COLOURED]
    palette = Palette(coloured)

    figure, (left, right) = figures.grid(("", ""), width, height=2.8)
    lines = {}
    for name in reversed(by_time):
        lengths = [row.n for row in rows_of[name]]
        style = palette.line(name)
        if name in coloured:
            style |= palette.marker(name) | {"ms": 3}
        (lines[name],) = left.plot(lengths, [row.ms for row in rows_of[name]], **style)
        # A logarithmic axis has no zero.
        megabytes = [max(row.peak_bytes or 0, 1) / 2**20 for row in rows_of[name]]
        right.plot(lengths, megabytes, **style)

    key = {name: lines[name] for name in coloured}
    num_grey = len(rows_of) - len(coloured)
    if num_grey:
        (key[f"{num_grey} slower ones"],) = left.plot([], [], **figures.GREY)
    _set_axes(left, "ms", group.lengths)
    _set_axes(right, "MB", group.lengths)
    location = "outside right upper" if width > 1.5 * figures.COLUMN else "outside lower center"
    figure.legend(key.values(), key.keys(), loc=location)
    return figure


def _set_axes(axes: Axes, unit: str, lengths: list[int]) -> None:
    axes.set(xscale="log", yscale="log", xlabel="n", ylabel=unit)
    axes.yaxis.set_major_formatter(FuncFormatter(figures.short))
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.minorticks_off()
