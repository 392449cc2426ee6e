"""Every seed of a study as a point, and dev scores over learning rates: a chart for each task."""

import itertools
from collections.abc import Callable, Mapping
from statistics import mean
from typing import NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure

from . import figures, plots
from .figures import Picture
from .palette import COLOURED, GROUND, INK, SOFT, Palette, family, look
from .rates import BUDGET, RATE, RATES, tried, untuned
from .standings import CONTROLS, EXACT, floor
from .summary import Row

ABOUT = (
    "Test score of each seed: one point a seed, one row a mechanism, best mean first; a cross at the floor (the dotted "
    "line) is a seed without a result. Dev score over the learning rate, for mechanisms with several of them."
)
STRIP = (1.7, 0.135)  # inches: width of a chart, height of a row in it


class Strip(NamedTuple):
    """The test scores of a label's finished seeds on one task, the number of the other seeds, and the floor."""

    label: str
    scores: list[float]
    lost: int
    floor: float


def seeds(rows: list[Row]) -> dict[str, list[Strip]]:
    """List the strips of each task, without the runs of a search over rates, best mean over tasks first."""
    strips: dict[str, list[Strip]] = {}
    for row in untuned(rows):
        if not RATE.search(row.label):
            strips.setdefault(row.task, []).append(Strip(row.label, [*row.scores.values()], row.lost, floor(row)))
    return strips


def searches(rows: list[Row]) -> dict[str, list[plots.RateCurve]]:
    """List the curves over learning rates of each task, of labels with several rates."""
    found: dict[str, list[plots.RateCurve]] = {}
    for (label, task), by_rate in tried(rows).items():
        at = lambda rate, row: next(iter(row.runs.values())).lr if rate == BUDGET else float(rate)
        dev = {at(rate, row): row.dev for rate, row in by_rate.items()}
        rates = sorted(dev.keys() - {None})  # a record may not say the budget's
        if len(rates) > 1:
            found.setdefault(task, []).append(plots.RateCurve(label, rates, [dev[rate] for rate in rates]))
    return found


@rc_context(figures.PRINT)
def draw_seeds(panels: Mapping[str, list[Strip]], width: float = figures.TEXT) -> Figure:
    """Draw a point for each seed, in a row for each label that all charts share."""
    scores: dict[str, list[float]] = {}
    for strip in itertools.chain(*panels.values()):
        scores.setdefault(strip.label, []).append(mean(strip.scores or [strip.floor]))
    labels = sorted(scores, key=lambda label: (-len(scores[label]), -mean(scores[label])))
    figure, charts = figures.grid(panels, width, STRIP[0], 0.65 + STRIP[1] * len(labels), sharey=True)
    for axes, strips in zip(charts, panels.values(), strict=True):
        for strip in strips:
            place = labels.index(strip.label)
            at = {"y": [place] * len(strip.scores), "alpha": 0.7, "ec": GROUND, "lw": 0.4}
            axes.scatter(strip.scores, s=16, **at, **look(family(strip.label)), **plots.ABOVE)
            axes.scatter([strip.floor] * strip.lost, [place] * strip.lost, s=13, lw=0.8, marker="x", color=INK)
        axes.axvline(max(strip.floor for strip in strips), color=SOFT, lw=0.8, ls=":")
        plots.ticks(axes, "test score")
        axes.set(ylim=(len(labels) - 0.5, -0.5), yticks=range(len(labels)), yticklabels=labels)
    figures.families(figure, labels)
    figures.lay_out(figure)  # makes the ticks in this style
    return figure


def draw_searches(panels: Mapping[str, list[plots.RateCurve]], width: float = figures.TEXT) -> Figure:
    """Draw dev scores over rates; exact attention, controls and the best have a colour, the others are grey."""
    palette = coloured(panels, lambda curve: max(dev or 0.0 for dev in curve.dev))
    return figures.charts(panels, plots.rates, palette, width)


def draw_curves(panels: Mapping[str, list[plots.Curve]], width: float = figures.TEXT) -> Figure:
    """Draw dev scores over steps, with the colours of ``draw_searches``."""
    return figures.charts(panels, plots.learning, coloured(panels, lambda curve: max(curve.mean)), width)


def coloured(panels: Mapping[str, list], score: Callable[..., float]) -> Palette:
    """Give a colour to exact attention, controls and the labels with the best mean scores, as many as are told apart.

    The best have no colour in common.

    Args:
        panels: curves of each task.
        score: a function that gives the score of a curve.
    """
    found: dict[str, list[float]] = {}
    for curve in itertools.chain(*panels.values()):
        found.setdefault(curve.label, []).append(score(curve))
    best = sorted(found, key=lambda label: -mean(found[label]))
    chosen = sorted(best, key=lambda label: label not in (EXACT, *CONTROLS))[:COLOURED]
    return Palette(sorted(chosen, key=lambda label: (label != EXACT, best.index(label))))


def pictures(rows: list[Row]) -> list[Picture]:
    """List the pictures of a study that have something to show."""
    study = rows[0].study
    made = [
        Picture(f"{study}-seeds", f"test scores of {study}, a point a seed, and the floor", draw_seeds, seeds(rows)),
        Picture(f"{study.removesuffix(RATES)}-rates", "dev scores over learning rates", draw_searches, searches(rows)),
    ]
    return [picture for picture in made if picture.panels]
