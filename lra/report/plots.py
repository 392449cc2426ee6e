"""Learning curves, scores over learning rates, and speed against accuracy, drawn into matplotlib's axes."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from .palette import GROUND, INK, Palette
from .summary import Row

SERIES = "series-"  # followed by a number: the id of all elements of a label
ABOVE = {"zorder": 3, "clip_on": False}  # axes and grid


class Curve(NamedTuple):
    """Dev scores of a label over steps: mean, and mean ± sample standard deviation over its ``n`` seeds."""

    label: str
    steps: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]
    n: int


class Bubble(NamedTuple):
    """A label on one task and device: milliseconds a step, test score, peak bytes (None if not counted)."""

    label: str
    ms: float
    test: float
    std: float | None
    n: int
    peak: float | None


class RateCurve(NamedTuple):
    """The mean dev scores of a label on one task at each learning rate; None without a finished seed."""

    label: str
    rates: list[float]
    dev: list[float | None]


def by_task(rows: list[Row], runs: dict[Path, dict[str, dict[int, float]]]) -> dict[str, list[Curve]]:
    """Average the dev scores of the finished seeds of each row at the steps that all of them have, by task.

    Args:
        rows: rows of a study.
        runs: curves of each run by its folder, then by column.
    """
    curves: dict[str, list[Curve]] = {}
    for row in rows:
        seeds = [runs[folder].get("val", {}) for folder, r in row.runs.items() if r.status == "done"]
        seeds = [seed for seed in seeds if seed]
        steps = sorted(set.intersection(*map(set, seeds))) if seeds else []
        at = [[seed[step] for seed in seeds] for step in steps]
        middle = [mean(values) for values in at]
        spread = [stdev(values) if len(values) > 1 else 0.0 for values in at]
        low, high = ([m + sign * s for m, s in zip(middle, spread, strict=True)] for sign in (-1, 1))
        if steps:
            curves.setdefault(row.task, []).append(Curve(row.label, steps, middle, low, high, len(seeds)))
    return curves


def bubbles(rows: list[Row]) -> dict[tuple[str, str], list[Bubble]]:
    """Group rows as bubbles by (task, device), if there are two or more labels to compare."""
    groups: dict[tuple[str, str], list[Bubble]] = {}
    for row in rows:
        if row.ms and row.test is not None:
            bubble = Bubble(row.label, row.ms, row.test, row.cell.std, row.n, row.peak)
            groups.setdefault((row.task, row.facts["device"]), []).append(bubble)
    return {place: group for place, group in groups.items() if len(group) > 1}


def learning(axes: Axes, curves: Sequence[Curve], palette: Palette) -> dict[str, str]:
    """Draw the mean over seeds as a line and mean ± standard deviation as a band behind it.

    Returns:
        A tooltip for each label.
    """
    notes = {}
    for curve in curves:
        look, own = palette.line(curve.label), {"gid": f"{SERIES}{len(notes)}", **ABOVE}
        if curve.n > 1 and curve.label in palette.place:
            band = [*curve.steps, *curve.steps[::-1]], [*curve.high, *curve.low[::-1]]
            axes.fill(*band, color=look["color"], alpha=0.13, lw=0, **own)
        axes.plot(curve.steps, curve.mean, **own | look)
        spread = f" ± {curve.high[-1] - curve.mean[-1]:.2f}" if curve.n > 1 else ""
        last = f"{curve.mean[-1]:.2f}{spread} at step {curve.steps[-1]:,}"
        notes[curve.label] = f"{curve.label}: {last}, n = {curve.n}"
    ticks(axes, "step")
    return notes


def rates(axes: Axes, searches: Sequence[RateCurve], palette: Palette) -> None:
    """Draw dev scores over learning rates, a line for each label, which a rate without a score interrupts."""
    for search in searches:
        axes.plot(search.rates, search.dev, marker="o", ms=2.5, **palette.line(search.label))
    ticks(axes, "learning rate")
    axes.set_xscale("log")
    tried = sorted({rate for search in searches for rate in search.rates})
    axes.set_xticks(tried, [f"{rate:g}" for rate in tried])
    axes.minorticks_off()


def seeds(axes: Axes, curves: dict[int, dict[int, float]], palette: Palette) -> dict[str, str]:
    """Draw a line for each seed of one row. Returns a tooltip for each."""
    for i, (seed, curve) in enumerate(curves.items()):
        axes.plot(list(curve), list(curve.values()), **palette.line(seed), gid=f"{SERIES}{i}", **ABOVE)
    ticks(axes, "step")
    return {str(seed): f"seed {seed}" for seed in curves}


def trade(axes: Axes, group: Sequence[Bubble], palette: Palette) -> dict[str, str]:
    """Draw test score over milliseconds a step; the area of a bubble is its peak memory.

    Returns:
        A tooltip for each label.
    """
    most = max(b.peak or 0 for b in group)
    times, notes = [b.ms for b in group], {}
    axes.set_xscale("log")
    axes.margins(0.12)
    for b in sorted(group, key=lambda b: -(b.peak or 0)):
        own, size = {"gid": f"{SERIES}{len(notes)}", **ABOVE}, rcParams["font.size"] ** 2
        area = size * (0.4 + 6 * b.peak / most if most and b.peak else 1)
        look = palette.marker(b.label) | {"ec": GROUND, "lw": (1.5, 1.5)}  # of one width SVG would refer to an id
        axes.scatter(b.ms, b.test, area, alpha=0.9, **look, **own)
        axes.text(b.ms, b.test, " ".join(b.label.split()), color=INK, **own | {"zorder": 4})
        memory = f", {b.peak / 2**30:.2f} GiB" if b.peak else ""
        spread = "" if b.std is None else f" ± {b.std:.2f}"
        notes[b.label] = f"{b.label}: {b.test:.2f}{spread} (n = {b.n}), {b.ms:.1f} ms a step{memory}"
    ticks(axes, "ms a step")
    if max(times) > 4 * min(times):
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    return notes


def ticks(axes: Axes, unit: str) -> None:
    """Set at most five round ticks on both axes, and the unit of the horizontal one."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(short))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlabel(unit)


def short(value: float, _place: int = 0) -> str:
    """Format a tick: 5000 -> 5k."""
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"
