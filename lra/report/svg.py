"""Charts of the page, as inline SVG that takes its colours from the page's style sheet."""

import math
from collections.abc import Iterable, Sequence
from html import escape

from matplotlib.ticker import LogLocator, MaxNLocator

from .curves import Bubble, Curve
from .palette import COLOURS, Palette

WIDTH, HEIGHT = 380, 250
LEFT, RIGHT, TOP, BOTTOM = 40, 12, 10, 34
CHARACTER, LINE = 6.2, 12  # of a label, pixels
ROOM = 0.12  # around bubbles
_LINEAR = MaxNLocator(5, steps=[1, 2, 5, 10])


class Axes:
    """The frame of one chart: maps data to pixels, draws ticks and grid. log: x is logarithmic."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float], *, x: str, log: bool = False):
        self.log, self.name = log, x
        self.x_range = _padded([math.log(x) for x in xs], ROOM) if log else _padded(xs)
        self.y_range = _padded(ys, ROOM if log else 0.04)

    def x(self, value: float) -> float:
        low, high = self.x_range
        at = ((math.log(value) if self.log else value) - low) / (high - low)
        return LEFT + at * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def path(self, xs: Iterable[float], ys: Iterable[float]) -> str:
        return "M" + "L".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in zip(xs, ys, strict=True))

    def draw(self, title: str, content: Iterable[str]) -> str:
        parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
        for value in _ticks(_LINEAR, self.y_range):
            at = self.y(value)
            parts.append(f'<path class="grid" d="M{LEFT},{at:.1f}H{WIDTH - RIGHT}"/>')
            parts.append(f'<text class="tick end" x="{LEFT - 6}" y="{at + 3.5:.1f}">{value:g}</text>')
        limits = tuple(map(math.exp, self.x_range)) if self.log else self.x_range
        for value in _ticks(LogLocator(subs=(1, 2, 5)) if self.log and limits[1] > 4 * limits[0] else _LINEAR, limits):
            anchor = f'x="{self.x(value):.1f}" y="{HEIGHT - BOTTOM + 15}"'
            parts.append(f'<text class="tick middle" {anchor}>{short(value)}</text>')
        parts.append(f'<path class="axis" d="M{LEFT},{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="end" x="{WIDTH - RIGHT}" y="{HEIGHT - 3}">{escape(self.name)}</text>')
        return "".join([*parts, *content, "</svg>"])


def learning(task: str, study: str, curves: list[Curve], palette: Palette) -> str:
    """Mean over seeds as a line, mean ± standard deviation as a band behind it."""
    axes = Axes(
        [step for curve in curves for step in (curve.steps[0], curve.steps[-1])],
        [value for curve in curves for value in (*curve.low, *curve.high)],
        x="step",
    )
    drawn = []
    for curve in curves:
        spread = f" ± {curve.high[-1] - curve.mean[-1]:.2f}" if curve.n > 1 else ""
        about = f"{curve.label}: {curve.mean[-1]:.2f}{spread} at step {curve.steps[-1]:,}, n = {curve.n}"
        band = axes.path(curve.steps, curve.high) + axes.path(curve.steps[::-1], curve.low[::-1]).replace("M", "L", 1)
        line = f'<path class="line" d="{axes.path(curve.steps, curve.mean)}"{_dash(palette.dash(curve.label))}/>'
        body = (f'<path class="band" d="{band}Z"/>' if curve.n > 1 else "") + line
        drawn.append(series(curve.label, study, palette, about, body))
    return axes.draw(f"{task}: dev score over steps", drawn)


def one_run(title: str, seeds: dict[int, dict[int, float]]) -> str:
    """A line for each seed of one row."""
    steps = [step for curve in seeds.values() for step in curve]
    axes = Axes(steps, [value for curve in seeds.values() for value in curve.values()], x="step")
    lines = [
        f'<g class="series" style="--c:var(--c{i % len(COLOURS)})"><title>seed {seed}</title>'
        f'<path class="line" d="{axes.path(curve, curve.values())}"/></g>'
        for i, (seed, curve) in enumerate(seeds.items())
    ]
    return axes.draw(title, lines)


def trade(place: str, study: str, group: list[Bubble], palette: Palette) -> str:
    """Test score over milliseconds a step; the area of a bubble is its peak memory where a GPU counted it."""
    axes = Axes([b.ms for b in group], [b.test for b in group], x="ms a step", log=True)
    most = max((b.peak or 0) for b in group)
    taken: list[tuple[float, float, float, float]] = []
    radius = {b.label: 5 + 13 * math.sqrt((b.peak or 0) / most) if most else 6 for b in group}
    for b in group:
        x, y, r = axes.x(b.ms), axes.y(b.test), radius[b.label]
        taken.append((x - r, y - r, x + r, y + r))
    drawn = []
    for b in sorted(group, key=lambda b: -radius[b.label]):
        x, y, r = axes.x(b.ms), axes.y(b.test), radius[b.label]
        memory = f", {b.peak / 2**30:.2f} GiB" if b.peak else ""
        spread = "" if b.std is None else f" ± {b.std:.2f}"
        about = f"{b.label}: {b.test:.2f}{spread} (n = {b.n}), {b.ms:.1f} ms a step{memory}"
        ring = ' class="ring"' if palette.turn(b.label) else ""
        body = f'<circle{ring} cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}"/>' + _label(b.label, x, y, r, taken)
        drawn.append(series(b.label, study, palette, about, body))
    return axes.draw(f"{place}: test score over time of a step", drawn)


def series(label: str, study: str, palette: Palette, about: str, body: str) -> str:
    names = f'data-label="{escape(label)}" data-study="{escape(study)}"'
    style = f"--c:var(--c{palette.colour(label)})"
    return f'<g class="series" {names} style="{style}"><title>{escape(about)}</title>{body}</g>'


def short(value: float) -> str:
    """5000 -> 5k"""
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def _label(text: str, x: float, y: float, r: float, taken: list[tuple[float, float, float, float]]) -> str:
    """Beside, above or below its bubble, where nothing stands yet; else only the tooltip tells."""
    width, gap = CHARACTER * len(text), r + 3
    for anchor, left, middle in (
        ("start", x + gap, y),
        ("end", x - gap - width, y),
        ("middle", x - width / 2, y - gap - LINE / 2),
        ("middle", x - width / 2, y + gap + LINE / 2),
    ):
        box = left, middle - LINE / 2, left + width, middle + LINE / 2
        inside = box[0] >= LEFT and box[2] <= WIDTH and box[1] >= 0 and box[3] <= HEIGHT - BOTTOM
        if inside and not any(_overlap(box, other) for other in taken):
            taken.append(box)
            at = {"start": left, "end": left + width, "middle": left + width / 2}[anchor]
            return f'<text class="label {anchor}" x="{at:.1f}" y="{middle + 3.5:.1f}">{escape(text)}</text>'
    return ""


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _dash(dash: str) -> str:
    return f' stroke-dasharray="{dash}"' if dash else ""


def _padded(values: Sequence[float], share: float = 0.04) -> tuple[float, float]:
    """From the least to the greatest with a share of room on both sides; never empty."""
    low, high = min(values), max(values)
    room = share * (high - low) or 0.1
    return low - room, high + room


def _ticks(locator, limits: tuple[float, float]) -> list[float]:
    return [float(value) for value in locator.tick_values(*limits) if limits[0] <= value <= limits[1]]
