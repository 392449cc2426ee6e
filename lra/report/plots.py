"""Learning curves, and speed against accuracy, drawn into matplotlib's axes."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Circle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from ..console import visible
from .palette import COLOURS, GROUND, INK, Palette
from .summary import Row

FONT, CHARACTER, LINE = 11, 6.2, 12  # of a label, points
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


def over_seeds(row: Row, runs: dict[Path, dict[str, dict[int, float]]]) -> Curve | None:
    """Average the dev scores of a row's finished seeds at the steps that all of them have; None without any."""
    seeds = [runs[folder]["val"] for folder, r in row.runs.items() if r.status == "done" and runs[folder].get("val")]
    steps = sorted(set.intersection(*map(set, seeds))) if seeds else []
    if not steps:
        return None
    at = [[seed[step] for seed in seeds] for step in steps]
    middle = [mean(values) for values in at]
    spread = [stdev(values) if len(values) > 1 else 0.0 for values in at]
    low, high = ([m + sign * s for m, s in zip(middle, spread, strict=True)] for sign in (-1, 1))
    return Curve(row.label, steps, middle, low, high, len(seeds))


def by_task(rows: list[Row], runs: dict[Path, dict[str, dict[int, float]]]) -> dict[str, list[Curve]]:
    """Group the curves of rows by task.

    Args:
        rows: rows of a study.
        runs: curves of each run by its folder, then by column.
    """
    curves: dict[str, list[Curve]] = {}
    for row in rows:
        if curve := over_seeds(row, runs):
            curves.setdefault(row.task, []).append(curve)
    return curves


def bubbles(rows: list[Row]) -> dict[tuple[str, str], list[Bubble]]:
    """Group rows as bubbles by (task, device), if there are two or more labels to compare."""
    groups: dict[tuple[str, str], list[Bubble]] = {}
    for row in rows:
        if row.ms and row.test is not None:
            bubble = Bubble(row.label, row.ms, row.test, row.std, row.n, row.peak)
            groups.setdefault((row.task, row.facts["device"]), []).append(bubble)
    return {place: group for place, group in groups.items() if len(group) > 1}


def learning(axes: Axes, curves: Sequence[Curve], palette: Palette) -> dict[str, str]:
    """Draw the mean over seeds as a line and mean ± standard deviation as a band behind it.

    Returns:
        A tooltip for each label.
    """
    notes = {}
    for curve in curves:
        look = {"color": COLOURS[palette.colour(curve.label)][0], "gid": f"{SERIES}{len(notes)}", **ABOVE}
        if curve.n > 1:
            axes.fill([*curve.steps, *curve.steps[::-1]], [*curve.high, *curve.low[::-1]], alpha=0.13, lw=0, **look)
        axes.plot(curve.steps, curve.mean, lw=1.8, ls=dashes(palette.dash(curve.label)), **look)
        spread = f" ± {curve.high[-1] - curve.mean[-1]:.2f}" if curve.n > 1 else ""
        last = f"{curve.mean[-1]:.2f}{spread} at step {curve.steps[-1]:,}"
        notes[curve.label] = f"{curve.label}: {last}, n = {curve.n}"
    axes.set_xlabel("step", loc="right")
    return notes


def seeds(axes: Axes, curves: dict[int, dict[int, float]], _palette: Palette) -> dict[str, str]:
    """Draw a line for each seed of one row. Returns a tooltip for each."""
    for i, curve in enumerate(curves.values()):
        look = {"color": COLOURS[i % len(COLOURS)][0], "gid": f"{SERIES}{i}", **ABOVE}
        axes.plot(list(curve), list(curve.values()), lw=1.8, **look)
    axes.set_xlabel("step", loc="right")
    return {str(seed): f"seed {seed}" for seed in curves}


def trade(axes: Axes, group: Sequence[Bubble], palette: Palette) -> dict[str, str]:
    """Draw test score over milliseconds a step; the area of a bubble is its peak memory.

    A label is written beside, above or below its bubble if there is space; otherwise only the tooltip names it.

    Returns:
        A tooltip for each label.
    """
    low, high = _padded([math.log(b.ms) for b in group])
    axes.set(xscale="log", xlim=(math.exp(low), math.exp(high)), ylim=_padded([b.test for b in group]))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if high - low > math.log(4) else ticks())
    axes.xaxis.set_major_formatter(FuncFormatter(short))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("ms a step", loc="right")
    most = max(b.peak or 0 for b in group)
    radius = {b.label: 5 + 13 * math.sqrt((b.peak or 0) / most) if most else 6 for b in group}
    inches, points = axes.figure.dpi_scale_trans, 72 / axes.figure.dpi
    frame = axes.get_window_extent()
    room = (points * frame.x0, points * frame.y0, points * frame.x1 + LINE, points * frame.y1 + LINE)
    at = {b.label: [points * v for v in axes.transData.transform((b.ms, b.test))] for b in group}
    occupied = [(x - r, y - r, x + r, y + r) for (x, y), r in ((at[label], r) for label, r in radius.items())]
    notes = {}
    for b in sorted(group, key=lambda b: -radius[b.label]):
        colour, r, (x, y) = COLOURS[palette.colour(b.label)][0], radius[b.label], at[b.label]
        look = {"transform": inches, "gid": f"{SERIES}{len(notes)}", **ABOVE}
        face, edge, width = (GROUND, colour, 2.5) if palette.turn(b.label) else (colour, GROUND, 1.5)
        axes.add_patch(Circle((x / 72, y / 72), r / 72, fc=face, ec=edge, lw=width, alpha=0.9, **look))
        text = visible(" ".join(b.label.split()))
        if place := _beside(text, x, y, r, room, occupied):
            side, x, y = place
            axes.text(x / 72, y / 72, text, ha=side, va="center_baseline", size=FONT, c=INK, **look)
        memory = f", {b.peak / 2**30:.2f} GiB" if b.peak else ""
        spread = "" if b.std is None else f" ± {b.std:.2f}"
        notes[b.label] = f"{b.label}: {b.test:.2f}{spread} (n = {b.n}), {b.ms:.1f} ms a step{memory}"
    return notes


def ticks() -> MaxNLocator:
    """At most five round ticks."""
    return MaxNLocator(5, steps=[1, 2, 5, 10])


def short(value: float, _place: int = 0) -> str:
    """Format a tick: 5000 -> 5k."""
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def dashes(dash: str) -> object:
    """Convert a dash of SVG to a line style of matplotlib."""
    return (0, [float(length) / 1.8 for length in dash.split()]) if dash else "-"


def _beside(
    text: str, x: float, y: float, r: float, room: tuple, occupied: list[tuple]
) -> tuple[str, float, float] | None:
    """Find free space for a label beside, above or below its bubble.

    Args:
        text: the label.
        x, y, r: centre and radius of the bubble in points.
        room: box of the chart: left, bottom, right, top.
        occupied: boxes of bubbles and earlier labels; the new one is added.

    Returns:
        Alignment and position in points, None without free space.
    """
    width, gap = CHARACTER * len(text), r + 3
    for side, left, middle in (
        ("left", x + gap, y),
        ("right", x - gap - width, y),
        ("center", x - width / 2, y + gap + LINE / 2),
        ("center", x - width / 2, y - gap - LINE / 2),
    ):
        box = left, middle - LINE / 2, left + width, middle + LINE / 2
        inside = box[0] >= room[0] and box[1] >= room[1] and box[2] <= room[2] and box[3] <= room[3]
        if inside and not any(_overlap(box, other) for other in occupied):
            occupied.append(box)
            return side, {"left": left, "right": left + width, "center": left + width / 2}[side], middle
    return None


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _padded(values: Sequence[float], share: float = 0.12) -> tuple[float, float]:
    """The range of values with a margin on both sides, a share of its width; never empty."""
    low, high = min(values), max(values)
    room = share * (high - low) or 0.1
    return low - room, high + room
