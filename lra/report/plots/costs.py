"""The costs of contestants: time and memory at one n or over n, and the measured growth with n."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ...results import figures
from ...results.palette import COLOURED, COLOURS, Palette
from ..bench_groups import Group, growth, label, number


def draw_bars(group: Group, width: float) -> Figure:
    """Draw a bar for each contestant with a time, the slowest first.

    Args:
        group: rows of a benchmark with one length.
        width: width in inches.
    """
    # There is one length, so that each contestant has one row.
    first_rows = {name: rows[0] for name, rows in group.over_n().items() if rows}
    names = sorted(first_rows, key=lambda name: -first_rows[name].ms)
    figure, (left, right) = figures.grid(("", ""), width, height=_bar_height(group), sharey=True)
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


def _bar_height(group: Group) -> float:
    """Return the height in inches of a chart with a row for each contestant."""
    return 1 + 0.16 * len(group.over_n())


def draw_over_length(group: Group, width: float) -> Figure:
    """Draw a line for each contestant with a time, both axes logarithmic, as in CURformer's Figure 4.

    Of many contestants only the fastest have a colour.

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


def draw_growth(group: Group, width: float) -> Figure:
    """Draw the measured and the claimed exponent of n of each contestant, the largest first.

    Args:
        group: rows of a benchmark with three or more lengths.
        width: width in inches.
    """
    # Contestants with at least three lengths.
    exponents = {}
    for name, rows in group.over_n().items():
        exponent = growth([(row.n, row.ms) for row in rows])
        if exponent is not None:
            exponents[name] = exponent
    names = sorted(exponents, key=lambda name: -exponents[name])
    claimed = {label(row): row.claimed for row in group.rows}

    figure, (axes,) = figures.grid(("",), width, height=_bar_height(group))
    axes.scatter([claimed[name] for name in names], names, marker="|", color="0.5", s=90, label="claimed")
    axes.scatter([exponents[name] for name in names], names, color=COLOURS[0][0], s=22, label="measured")
    axes.set(xlabel=f"exponent of n in the time, up to n = {group.lengths[-1]:,}")
    axes.grid(axis="x")
    axes.margins(y=0.02)
    axes.legend()
    return figure
