"""The agreement of the order of mechanisms on a board with that of published scores of the Long Range Arena."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from . import published
from .standings import EXACT, BoardResults
from .statistics import LEVEL, RESAMPLES, mean_over_tasks
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


def pairs(board: BoardResults) -> dict[tuple[str, str], list[Pair]]:
    """List the mechanisms that a board and a source have, by the source and its tasks (all, or ListOps alone)."""
    whole = {label: float(mean_over_tasks(scores)) for label, scores in board.complete.items()}
    alone = {label: float(by_task[LED].mean()) for label, by_task in board.shares.items() if LED in by_task}
    made = {}
    for name, ours, wanted in (("all", whole, ALL), (LED, alone, (LED,))):
        for source, theirs in sorted(by_source(list(ours), wanted).items()):
            common = [Pair(label, theirs[label], 100 * score) for label, score in ours.items() if label in theirs]
            if len(common) >= FEWEST:
                made[source, name] = common
    return made


def agreement_table(board: BoardResults) -> Table | None:
    """Make the table of rank correlations with each published source; None if no source has enough mechanisms."""
    lines = []
    for (source, tasks), some in pairs(board).items():
        _, theirs, ours = zip(*some, strict=True)
        low, high = interval(ours, theirs)
        value = Cell.of(float(spearmanr(ours, theirs).statistic), n=len(ours))
        lines.append([source, tasks, Cell.of(len(ours), str), value, f"{low:.2f} to {high:.2f}"])
    if not lines:
        return None
    return Table(
        name=stem(f"agreement-{board.name}"),
        title=f"{board.name}: agreement with published scores",
        about=ABOUT,
        cells=frame(("source", "tasks", "mechanisms", "correlation", "interval"), lines),
        words=("source", "tasks", "interval"),
    )


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


def interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Estimate the 95 % interval of the rank correlation by a percentile bootstrap over mechanisms.

    Args:
        ours, theirs: scores of the same mechanisms.

    Returns:
        The lower and the upper end; resamples of one mechanism alone, which have no correlation, are left out.
    """
    chosen = np.random.default_rng(0).integers(len(ours), size=(RESAMPLES, len(ours)))
    x, y = (pd.DataFrame(np.array(scores)[chosen]).rank(axis=1) for scores in (ours, theirs))
    low, high = x.corrwith(y, axis=1).quantile([(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return low, high
