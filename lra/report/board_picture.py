"""The picture of a board: score of each mechanism over its cost, families by colour and marker, controls as lines."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from matplotlib import rc_context
from matplotlib.figure import Figure

from ..runs.bench_record import BenchRecord
from . import figures
from .families import CONTROL, family, key, look
from .palette import INK, SOFT
from .standings import Standing
from .statistics import interquartile_mean, interval
from .summary import Row

N = 4096  # tokens at which mechanisms are timed
HEIGHT = 4  # inches, without the legend


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


@rc_context(figures.PRINT)
def draw(standings: Sequence[Standing], ms: Mapping[str, float], axis: str, width: float = figures.TEXT) -> Figure:
    """Draw the picture.

    Args:
        standings: mechanisms with runs on every task.
        ms: cost of each label; one without a cost is left out.
        axis: name of the cost.
        width: width in inches.
    """
    figure = Figure(figsize=(width, HEIGHT), layout="constrained")
    axes = figure.subplots()
    axes.margins(0.08)
    for s in standings:
        scores = list(s.shares.values())
        middle, (low, high) = (100 * interquartile_mean(scores), (100 * end for end in interval(scores)))
        kind = family(s.label)
        if kind == CONTROL:
            axes.axhline(middle, color=SOFT, lw=0.8, ls=":", zorder=1)
            axes.annotate(s.label, (0, middle), xycoords=("axes fraction", "data"), xytext=(3, 2), color=SOFT,
                          textcoords="offset points", ha="left", size=7, parse_math=False)  # fmt: skip
        elif s.label in ms:
            axes.errorbar(ms[s.label], middle, yerr=[[max(0, middle - low)], [max(0, high - middle)]], capsize=2, lw=1,
                          ms=6, linestyle="none", **look(kind))  # fmt: skip
            axes.text(ms[s.label], middle, s.label, color=INK, parse_math=False)
    axes.set(xscale="log", xlabel=axis, ylabel="score: share of the way from floor to 100, %")
    key(figure, [s.label for s in standings if s.label in ms and family(s.label) != CONTROL])
    figures.settle(figure, arrowstyle="-", color=SOFT, lw=0.5)
    return figure


def save(
    standings: Sequence[Standing],
    rows: Sequence[Row],
    measured: Sequence[BenchRecord],
    path: Path,
    width: float = figures.TEXT,
) -> Path:
    """Write the picture as PNG, SVG and PDF.

    Args:
        standings: standings of the board; those without runs on every task are left out.
        rows: results on the board.
        measured: benchmarks.
        path: path of the files, without a suffix.
        width: width in inches.

    Returns:
        The path of the PNG file.
    """
    tasks = {row.task for row in rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = [s for s in standings if s.shares.keys() == tasks]
    return figures.write(draw(whole, *costs(rows, measured), width), path)
