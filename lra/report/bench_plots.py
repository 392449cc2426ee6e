"""Figures of the cost of mechanisms: time and memory over n, growth, speed against accuracy."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ..runs.bench_record import BenchRecord
from . import figures, plots
from .bench_tables import Group, groups, growth, label, number
from .palette import COLOURED, COLOURS, Palette
from .summary import Row
from .table import stem


@rc_context(figures.PRINT)
def pictures(
    records: Sequence[BenchRecord], folder: Path, studies: Mapping[str, list[Row]], width: float = figures.TEXT
) -> list[Path]:
    """Draw the figures of benchmarks as PNG files, each with an SVG and a PDF beside it.

    These are time and memory of each group over n, or as bars if there is one n; growth; and speed against accuracy of
    each study whose mechanisms a benchmark timed.

    Args:
        records: records of benchmarks.
        folder: folder of the files.
        studies: rows of each study, for the test scores.
        width: width in inches; two panels of less than two columns of a paper stand one below the other.

    Returns:
        The paths of the PNG files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for group in groups(records):
        if not any(group.over_n().values()):
            continue
        name, several = f"{group.title} {group.source.fingerprint[:6]}", len(group.lengths) > 1
        drawn = {name: (_lines if several else _bars)(group, width)}
        if len(group.lengths) > 2:
            drawn[f"{name} growth"] = _exponents(group, width)
        for called, figure in drawn.items():
            at = "" if several else f", n {group.lengths[0]:,}"
            figure.suptitle(f"{group.title}{at}\n{group.source.machine.hardware}", fontsize="medium")
            paths.append(figures.write(figure, folder / stem(called)))
    for study, rows in studies.items():
        if panels := _bubbles(records, rows):
            palette = Palette(sorted({bubble.label for group in panels.values() for bubble in group}))
            figure = figures.charts(panels, plots.trade, palette, width)
            paths.append(figures.write(figure, folder / stem(f"speed and accuracy {study}")))
    return paths


def _lines(group: Group, width: float) -> Figure:
    """Time and memory over n, both axes logarithmic, as in CURformer's Figure 4."""
    figure, (left, right) = figures.grid(("", ""), width, high=2.8)
    timed = {name: mine for name, mine in group.over_n().items() if mine}
    by_time = sorted(timed, key=lambda name: (-timed[name][-1].n, timed[name][-1].ms))
    coloured = by_time if len(by_time) <= COLOURED + 1 else by_time[:COLOURED]
    palette = Palette(coloured)
    lines = {}
    for name in by_time[::-1]:
        n = [row.n for row in timed[name]]
        style = palette.line(name) | (palette.marker(name) | {"ms": 3} if name in coloured else {})
        (lines[name],) = left.plot(n, [row.ms for row in timed[name]], **style)
        right.plot(n, [max(row.peak_bytes or 0, 1) / 2**20 for row in timed[name]], **style)
    key = {name: lines[name] for name in coloured}
    if rest := len(timed) - len(coloured):
        (key[f"{rest} slower ones"],) = left.plot([], [], color="0.85")
    for axes, unit in ((left, "ms"), (right, "MB")):
        axes.set(xscale="log", yscale="log", xlabel="n", ylabel=unit)
        axes.yaxis.set_major_formatter(FuncFormatter(plots.short))
        axes.set_xticks(group.lengths, [f"{n:,}" for n in group.lengths])
        axes.minorticks_off()
    place = "outside right upper" if width > 1.5 * figures.COLUMN else "outside lower center"
    figure.legend(key.values(), key.keys(), loc=place)
    return figure


def _high(group: Group) -> float:
    return 1 + 0.16 * len(group.over_n())


def _bars(group: Group, width: float) -> Figure:
    timed = sorted(((mine[0], name) for name, mine in group.over_n().items() if mine), key=lambda pair: -pair[0].ms)
    figure, panels = figures.grid(("", ""), width, high=_high(group), sharey=True)
    for axes, unit, value in zip(panels, ("ms", "MB"), (lambda r: r.ms, lambda r: r.peak_bytes / 2**20), strict=True):
        bars = axes.barh([name for _, name in timed], [value(row) for row, _ in timed], color=COLOURS[0][0])
        axes.bar_label(bars, [number(value(row)) for row, _ in timed], padding=2)
        axes.xaxis.set_major_formatter(FuncFormatter(plots.short))
        axes.set(xlabel=unit)
        axes.grid(visible=False)
        axes.margins(x=0.12, y=0.01)
    return figure


def _exponents(group: Group, width: float) -> Figure:
    exponents = {name: growth([(row.n, row.ms) for row in mine]) for name, mine in group.over_n().items()}
    exponents = dict(sorted(((k, v) for k, v in exponents.items() if v is not None), key=lambda pair: -pair[1]))
    claimed = {label(row): row.claimed for row in group.rows}
    figure, (axes,) = figures.grid(("",), width, high=_high(group))
    names = list(exponents)
    axes.scatter([claimed[name] for name in names], names, marker="|", color="0.5", s=90, label="claimed")
    axes.scatter(list(exponents.values()), names, color=COLOURS[0][0], s=22, label="measured")
    axes.set(xlabel=f"exponent of n in the time, up to n = {group.lengths[-1]:,}")
    axes.grid(axis="x")
    axes.margins(y=0.02)
    axes.legend()
    return figure


def _bubbles(records: Sequence[BenchRecord], rows: Sequence[Row]) -> dict[str, list[plots.Bubble]]:
    """Combine the test scores of a study with times and memory, by task and the benchmark that they are from.

    Of each task the benchmark of training steps counts that timed most of its labels, preferably on the same task.
    """
    panels = {}
    for task in dict.fromkeys(row.task for row in rows):
        scored = {row.label: row for row in rows if row.task == task and row.test is not None}
        best, most = {}, (False, 1)
        for group in groups(records):
            if (group.rows[0].what, group.rows[0].mode) != ("step", "training"):
                continue
            for n, pad in {(row.n, row.pad): None for row in group.rows}:
                timed = [r for r in group.rows if (r.n, r.pad) == (n, pad) and r.ms and r.mechanism in scored]
                if len(timed) > 1 and (quality := (group.rows[0].task == task, len(timed))) > most:
                    padding = f", {pad} padding" if pad else ""
                    source = f"{task}; times of {group.source.name}, {timed[0].dtype}, n {n:,}{padding}"
                    most, best = quality, {source: timed}
        for source, timed in best.items():
            pairs = [(scored[r.mechanism], r) for r in timed]
            panels[source] = [plots.Bubble(s.label, r.ms, s.test, s.cell.std, s.n, r.peak_bytes) for s, r in pairs]
    return panels
