"""The agreement of the order of mechanisms on a board with that of published scores of the Long Range Arena."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from scipy.stats import rankdata, spearmanr

from . import figures, published
from .families import family, key, look
from .palette import INK, SOFT
from .standings import EXACT, standings
from .statistics import LEVEL, RESAMPLES, mean_over_tasks
from .strips import Picture
from .summary import Row
from .table import Cell, Table, frame, stem

FEWEST = 5  # mechanisms that a correlation needs
ALL = published.TASKS[:5]  # without Path-X, which most sources leave out
LED = "listops"
ABOUT = (
    "Spearman's rank correlation between the scores of this board and the accuracies that one source "
    "prints, over the mechanisms that both have, with a 95 % bootstrap interval over mechanisms. Published accuracies "
    f"are averaged over the tasks that the source prints for each of them, but Path-X; {LED}: that task alone on both "
    f"sides. Sources with fewer than {FEWEST} common mechanisms are left out. A low correlation means that the board "
    "does not predict the published order."
)


class Pair(NamedTuple):
    """A mechanism: its mean accuracy in a published source and its score on the board, both in percent."""

    label: str
    published: float
    board: float


def pairs(rows: list[Row]) -> dict[tuple[str, str], list[Pair]]:
    """List the mechanisms that a board and a source have, by the source and its tasks (all, or ListOps alone).

    Args:
        rows: results of the board at the chosen rates.
    """
    found, tasks = standings(rows), {row.task for row in rows}
    board = {s.label: float(mean_over_tasks(list(s.shares.values()))) for s in found if s.shares.keys() == tasks}
    alone = {s.label: float(s.shares[LED].mean()) for s in found if LED in s.shares}
    made = {}
    for name, ours, wanted in (("all", board, ALL), (LED, alone, (LED,))):
        for source, theirs in sorted(by_source(list(ours), wanted).items()):
            common = [Pair(label, theirs[label], 100 * score) for label, score in ours.items() if label in theirs]
            if len(common) >= FEWEST:
                made[source, name] = common
    return made


def agreement_table(study: str, rows: list[Row]) -> Table | None:
    """Make the table of rank correlations with each published source; None if no source has enough mechanisms.

    Args:
        study: name of the board.
        rows: its results at the chosen rates.
    """
    lines = [_line(*place, some) for place, some in pairs(rows).items()]
    if not lines:
        return None
    return Table(
        name=stem(f"agreement-{study}"),
        title=f"{study}: agreement with published scores",
        about=ABOUT,
        cells=frame(("source", "tasks", "mechanisms", "correlation", "interval"), lines),
        words=("source", "tasks", "interval"),
    )


def picture(study: str, rows: list[Row]) -> Picture:
    """Compute the picture of a board's scores over published ones, a chart a source."""
    panels = {f"{source}, tasks: {tasks}": some for (source, tasks), some in pairs(rows).items()}
    return Picture(f"{study}-agreement", f"scores of {study} over published accuracies", draw, panels)


@rc_context(figures.PRINT)
def draw(panels: Mapping[str, Sequence[Pair]], width: float = figures.TEXT) -> Figure:
    """Draw a point for each mechanism."""
    figure, charts = figures.grid(panels, width)
    for axes, some in zip(charts, panels.values(), strict=True):
        for pair in some:
            axes.plot(pair.published, pair.board, linestyle="none", **look(family(pair.label)))
            axes.text(pair.published, pair.board, pair.label, color=INK, parse_math=False)
        axes.set(xlabel="published accuracy, %", ylabel="score on the board, %")
    key(figure, [pair.label for some in panels.values() for pair in some])
    figures.settle(figure, arrowstyle="-", color=SOFT, lw=0.5)
    return figure


def by_source(labels: list[str], wanted: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Average the accuracies that each source prints for labels over the tasks that it prints for all of them.

    Args:
        labels: labels on the board.
        wanted: tasks that count.

    Returns:
        Source -> label -> mean accuracy in percent, without sources that have no task in common for their labels.
    """
    printed: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for label in labels:
        for name in (label, "softmax") if label == EXACT else (label,):  # which computes the same
            for row in published.accuracies(name, wanted):
                if row.number is not None:
                    printed[row.source][label].setdefault(row.task, row.number)
    averages = {}
    for source, scores in printed.items():
        if common := set.intersection(*map(set, scores.values())):
            averages[source] = {label: mean(values[task] for task in common) for label, values in scores.items()}
    return averages


def _line(source: str, tasks: str, some: list[Pair]) -> list[Cell | str]:
    _, theirs, ours = zip(*some, strict=True)
    value, (low, high) = spearmanr(ours, theirs).statistic, interval(ours, theirs)
    ends = Cell(text=f"{low:.2f} to {high:.2f}")
    return [source, tasks, Cell.of(len(ours), str), Cell.of(float(value), n=len(ours)), ends]


def interval(ours: Sequence[float], theirs: Sequence[float], *, seed: int = 0) -> tuple[float, float]:
    """Estimate the 95 % interval of the rank correlation by a percentile bootstrap over mechanisms.

    Args:
        ours, theirs: scores of the same mechanisms.
        seed: seed of the resampling.

    Returns:
        The lower and the upper end; resamples of one mechanism alone, which have no correlation, are left out.
    """
    chosen = np.random.default_rng(seed).integers(len(ours), size=(RESAMPLES, len(ours)))
    x, y = (rankdata(np.array(scores)[chosen], axis=1) - (len(ours) + 1) / 2 for scores in (ours, theirs))
    scale = np.sqrt((x * x).sum(1) * (y * y).sum(1))
    drawn = (x * y).sum(1)[scale > 0] / scale[scale > 0]
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
