"""Every seed of a study as a point, and the figures of a study that show all seeds and learning rates."""

import itertools
from collections import defaultdict
from collections.abc import Mapping
from statistics import mean
from typing import NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...results import figures
from ...results.figures import Picture
from ...results.lr_search import SEARCH_SUFFIX, without_search
from ...results.palette import GROUND, INK, SOFT, family, look
from ...results.summary import Row
from ...runs.reader import RATE
from . import lr_curves

ABOUT = (
    "Test score of each seed, one point per seed, best mean first; a cross at chance level (the dotted line) stands "
    "for one or more failed seeds. Validation score over the learning rate, for mechanisms with several rates."
)
# Inches: width of a chart, height of a row in it, height of the rest.
CHART_WIDTH = 1.7
ROW_HEIGHT = 0.135
REST_HEIGHT = 0.65


class SeedScores(NamedTuple):
    """The test scores of a label's finished seeds on one task, the number of failed seeds, and the chance level."""

    label: str
    scores: list[float]
    num_failed: int
    chance: float


def by_task(rows: list[Row]) -> dict[str, list[SeedScores]]:
    """List the seeds of each task, without trials of a search.

    As in overviews, other rates than the budget's are left out if the mechanism has runs at the budget's.
    """
    points: dict[str, list[SeedScores]] = defaultdict(list)
    is_search = rows[0].study.endswith(SEARCH_SUFFIX)
    for row in without_search(rows):
        if is_search and RATE.search(row.label):
            continue
        scores = list(row.scores.values())
        seed_scores = SeedScores(row.label, scores, row.num_failed, row.chance)
        points[row.task].append(seed_scores)
    return points


@rc_context(figures.PRINT)
def draw_figure(
    panels: Mapping[str, list[SeedScores]], width: float = figures.TEXT_WIDTH, unit: str = "test score"
) -> Figure:
    """Draw a point for each seed; the charts share one row per label. ``unit`` names the horizontal axis."""
    labels = _best_first(panels)
    num_labels = len(labels)
    height = REST_HEIGHT + ROW_HEIGHT * num_labels
    figure, charts = figures.grid(panels, width, CHART_WIDTH, height, sharey=True)
    for axes, content in zip(charts, panels.values(), strict=True):
        for seed_scores in content:
            _draw_seeds(axes, seed_scores, labels.index(seed_scores.label))
        chance = max(seed_scores.chance for seed_scores in content)
        axes.axvline(chance, color=SOFT, lw=0.8, ls=":")
        figures.set_ticks_and_labels(axes, unit)
        # One row per label, the first one at the top.
        axes.set(ylim=(num_labels - 0.5, -0.5), yticks=range(num_labels), yticklabels=labels)
    figures.add_family_legend(figure, labels)
    # Ticks are created while this style is active.
    figures.lay_out(figure)
    return figure


def _draw_seeds(axes: Axes, seed_scores: SeedScores, row: int) -> None:
    # Finished seeds in the colour of the family.
    kind = family(seed_scores.label)
    options = {"alpha": 0.7, "ec": GROUND, "lw": 0.4, **look(kind), **figures.ABOVE}
    rows = [row] * len(seed_scores.scores)
    axes.scatter(seed_scores.scores, rows, s=16, **options)

    # Failed seeds at chance level.
    chance = [seed_scores.chance] * seed_scores.num_failed
    rows = [row] * seed_scores.num_failed
    axes.scatter(chance, rows, s=13, lw=0.8, marker="x", color=INK, **figures.ABOVE | {"zorder": 4})


def _best_first(panels: Mapping[str, list[SeedScores]]) -> list[str]:
    """Sort labels by their number of tasks, then by their mean score, both descending."""
    means: dict[str, list[float]] = defaultdict(list)
    for seed_scores in itertools.chain(*panels.values()):
        # Without a finished seed chance level counts.
        scores = seed_scores.scores or [seed_scores.chance]
        means[seed_scores.label].append(mean(scores))

    def order(label: str) -> tuple[int, float]:
        task_means = means[label]
        return -len(task_means), -mean(task_means)

    return sorted(means, key=order)


def pictures(rows: list[Row]) -> list[Picture]:
    """List the pictures of a study: its seeds and its learning rates, as far as it has any."""
    study = rows[0].study
    # The picture of a search is named like the search: "board-rates".
    rates_name = study if study.endswith(SEARCH_SUFFIX) else f"{study}/rates"
    seeds = Picture(
        name=f"{study}/seeds",
        caption=f"test scores of {study}, one point per seed, a cross for all failed seeds; dotted: chance level",
        draw=draw_figure,
        panels=by_task(rows),
    )
    rates = Picture(
        name=rates_name,
        caption="validation scores over learning rates",
        draw=lr_curves.draw_figure,
        panels=lr_curves.by_task(rows),
    )
    return [picture for picture in (seeds, rates) if picture.panels]
