"""Learning curves: validation score over steps, mean over seeds and a band of one standard deviation."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...results import figures
from ...results.palette import Palette
from ...results.statistics import sample_std
from ...results.summary import Row
from .lr_curves import highlight


class Curve(NamedTuple):
    """Validation scores of a label over steps: mean, and mean ± sample standard deviation over its ``n`` seeds."""

    label: str
    steps: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]
    n: int


def by_task(rows: list[Row], runs: dict[Path, dict[str, dict[int, float]]]) -> dict[str, list[Curve]]:
    """Average the validation scores of the finished seeds of each row at their common steps, by task.

    Args:
        rows: rows of a study.
        runs: curves of each run by its run directory, then by column.
    """
    curves: dict[str, list[Curve]] = defaultdict(list)
    for row in rows:
        # A diverged seed has a curve, but no result to average.
        seeds = []
        for folder, r in row.runs.items():
            scores = runs[folder].get("val")
            if r.status == "done" and scores:
                seeds.append(scores)
        curve = _average(row.label, seeds)
        if curve:
            curves[row.task].append(curve)
    return curves


def _average(label: str, seeds: list[dict[int, float]]) -> Curve | None:
    """Average curves over seeds; None without a common step."""
    if not seeds:
        return None
    common_steps = set.intersection(*map(set, seeds))
    steps = sorted(common_steps)
    if not steps:
        return None

    # Mean and band at every step.
    means = []
    low = []
    high = []
    for step in steps:
        scores = [seed[step] for seed in seeds]
        average = mean(scores)
        spread = sample_std(scores) or 0.0
        means.append(average)
        low.append(average - spread)
        high.append(average + spread)
    return Curve(label, steps, means, low, high, len(seeds))


def draw(axes: Axes, curves: Sequence[Curve], palette: Palette) -> dict[str, str]:
    """Draw each mean as a line, and of a coloured label with several seeds a band of one standard deviation behind it.

    Returns:
        A tooltip for each label.
    """
    tooltips: dict[str, str] = {}
    for curve in curves:
        look = palette.line(curve.label)
        series_id = f"{figures.SERIES}{len(tooltips)}"
        options = {"gid": series_id, **figures.ABOVE}
        if curve.n > 1 and curve.label in palette.position:
            # The outline of the band: along its upper end and back along its lower end.
            band_steps = curve.steps + curve.steps[::-1]
            band_scores = curve.high + curve.low[::-1]
            axes.fill(band_steps, band_scores, color=look["color"], alpha=0.13, lw=0, **options)
        axes.plot(curve.steps, curve.mean, **options | look)
        if len(curve.steps) == 1:
            _mark_point(axes, curve.steps, curve.mean, options | {"color": look["color"]})
        tooltips[curve.label] = _tooltip(curve)
    figures.set_ticks_and_labels(axes, "step", "validation score")
    return tooltips


def draw_seeds(axes: Axes, curves: dict[int, dict[int, float]], palette: Palette) -> dict[str, str]:
    """Draw a line for each seed of one mechanism on one task.

    Args:
        axes: axes to draw into.
        curves: value by step, by seed.
        palette: colours of the seeds.

    Returns:
        A tooltip for each seed.
    """
    for i, (seed, curve) in enumerate(curves.items()):
        steps = list(curve)
        values = list(curve.values())
        options = palette.line(seed) | figures.ABOVE
        series_id = f"{figures.SERIES}{i}"
        axes.plot(steps, values, gid=series_id, **options)
        if len(steps) == 1:
            _mark_point(axes, steps, values, {"color": options["color"], "gid": series_id, **figures.ABOVE})
    figures.set_ticks_and_labels(axes, "step")
    return {str(seed): f"seed {seed}" for seed in curves}


def _mark_point(axes: Axes, steps: Sequence[int], values: Sequence[float], options: dict[str, Any]) -> None:
    """Mark the only evaluation of a curve, which has no line."""
    # Two equal line widths keep matplotlib from writing a shared marker, to which SVG would refer by an id.
    axes.scatter(steps, values, s=12, lw=(0.5, 0.5), **options)


def _tooltip(curve: Curve) -> str:
    """Describe the last point of a curve: "cur_abs: 40.00 ± 3.00 at step 20, n = 2"."""
    last_mean = curve.mean[-1]
    score = f"{last_mean:.2f}"
    if curve.n > 1:
        spread = curve.high[-1] - last_mean
        score += f" ± {spread:.2f}"
    return f"{curve.label}: {score} at step {curve.steps[-1]:,}, n = {curve.n}"


def draw_figure(panels: Mapping[str, list[Curve]], width: float = figures.TEXT_WIDTH) -> Figure:
    """Draw a chart for each task; of many labels only the references and the best ones have a colour."""
    palette = highlight(panels, _best_score)
    return figures.charts(panels, draw, palette, width)


def _best_score(curve: Curve) -> float:
    return max(curve.mean)
