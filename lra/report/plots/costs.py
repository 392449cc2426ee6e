"""The costs of contestants: time and memory at one n or over n, and the measured growth with n."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ...console import plural
from ...results import figures
from ...results.bench_record import BenchRow
from ...results.palette import COLOURED, COLOURS, GREY, Palette
from ..bench_groups import MEBIBYTE, Group, growth, label, three_digits

FIRST_COLOUR, _ = COLOURS[0]
MEGABYTES = "MB (2^20 bytes)"


def draw_bars(group: Group, width: float) -> Figure:
    """Draw a bar for each contestant with a time, the fastest at the top.

    Args:
        group: rows of a benchmark with one length.
        width: width in inches.
    """
    # There is one length, so each contestant has at most one row.
    times = {}
    mebibytes = {}
    for name, rows in group.over_n().items():
        if rows:
            times[name] = rows[0].ms
            mebibytes[name] = rows[0].peak_bytes / MEBIBYTE
    # matplotlib draws the first bar at the bottom.
    slowest_first = sorted(times, key=lambda name: -times[name])

    height = _bar_height(group)
    figure, (left, right) = figures.grid(("", ""), width, height=height, sharey=True)
    _draw_bars(left, slowest_first, times, "ms")
    _draw_bars(right, slowest_first, mebibytes, MEGABYTES)
    return figure


def _draw_bars(axes: Axes, names: Sequence[str], values_of: Mapping[str, float], unit: str) -> None:
    """Draw a bar with its number for each name."""
    values = [values_of[name] for name in names]
    bars = axes.barh(names, values, color=FIRST_COLOUR)
    axes.bar_label(bars, list(map(three_digits, values)), padding=2)
    axes.xaxis.set_major_formatter(FuncFormatter(figures.format_tick))
    axes.set(xlabel=unit)
    axes.grid(visible=False)
    axes.margins(x=0.12, y=0.01)


def _bar_height(group: Group) -> float:
    """Return the height in inches of a chart with a row for each contestant."""
    return 1 + 0.16 * len(group.over_n())


def draw_over_length(group: Group, width: float) -> Figure:
    """Draw a line for each contestant with a time, both axes logarithmic, as in CURformer's Figure 4.

    Of many contestants only the first of ``_longest_then_fastest`` have a colour.

    Args:
        group: rows of a benchmark.
        width: width in inches.
    """
    rows_of = {name: rows for name, rows in group.over_n().items() if rows}
    ordered_names = _longest_then_fastest(rows_of)
    coloured = ordered_names
    # A single grey line is not worth an entry of the legend.
    if len(ordered_names) > COLOURED + 1:
        coloured = ordered_names[:COLOURED]
    palette = Palette(coloured)

    # The first contestants are drawn last, in front of the others.
    figure, (left, right) = figures.grid(("", ""), width, height=2.8)
    lines = {}
    for name in reversed(ordered_names):
        style = palette.line(name)
        if name in coloured:
            style |= palette.marker(name)
            style["ms"] = 3
        rows = rows_of[name]
        lengths = [row.n for row in rows]
        times = [row.ms for row in rows]
        # A logarithmic axis has no zero.
        mebibytes = [max(row.peak_bytes or 0, 1) / MEBIBYTE for row in rows]
        (lines[name],) = left.plot(lengths, times, **style)
        right.plot(lengths, mebibytes, **style)

    # One legend for both charts; all grey lines have one entry.
    legend = {name: lines[name] for name in coloured}
    num_grey = len(rows_of) - len(coloured)
    if num_grey:
        (grey_line,) = left.plot([], [], color=GREY)
        legend[plural(num_grey, "other")] = grey_line
    _set_axes(left, "ms", group.lengths)
    _set_axes(right, MEGABYTES, group.lengths)
    location = "outside right upper" if width > 1.5 * figures.COLUMN_WIDTH else "outside lower center"
    figure.legend(legend.values(), legend.keys(), loc=location)
    return figure


def _longest_then_fastest(rows_of: Mapping[str, Sequence[BenchRow]]) -> list[str]:
    """Sort contestants: those that reach the largest n first, the fastest of them in front."""

    def order(name: str) -> tuple[int, float]:
        longest = rows_of[name][-1]
        return -longest.n, longest.ms

    return sorted(rows_of, key=order)


def _set_axes(axes: Axes, unit: str, lengths: list[int]) -> None:
    axes.set(xscale="log", yscale="log", xlabel="n", ylabel=unit)
    axes.yaxis.set_major_formatter(FuncFormatter(figures.format_tick))
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.minorticks_off()


def exponents_of(group: Group) -> dict[str, float]:
    """Measure the exponent of n of each contestant with a time at the last three lengths."""
    exponents = {}
    for name, rows in group.over_n().items():
        times = {row.n: row.ms for row in rows}
        exponent = growth(times, group.timed_lengths)
        if exponent is not None:
            exponents[name] = exponent
    return exponents


def draw_growth(group: Group, width: float) -> Figure:
    """Draw the measured and the claimed exponent of n of each contestant, the smallest measured one at the top.

    Args:
        group: rows of a benchmark in which a contestant has an exponent, see ``exponents_of``.
        width: width in inches.
    """
    exponents = exponents_of(group)
    names = sorted(exponents, key=lambda name: -exponents[name])
    measured = [exponents[name] for name in names]
    claims = {label(row): row.claimed for row in group.rows}
    claimed = [claims[name] for name in names]

    height = _bar_height(group)
    figure, (axes,) = figures.grid(("",), width, height=height)
    axes.scatter(claimed, names, marker="|", color="0.5", s=90, label="claimed")
    axes.scatter(measured, names, color=FIRST_COLOUR, s=22, label="measured")
    axes.set(xlabel=f"exponent of n in the time, up to n = {group.timed_lengths[-1]:,}")
    axes.grid(axis="x")
    axes.margins(y=0.02)
    axes.legend()
    return figure
