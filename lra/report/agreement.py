"""The agreement of the order of mechanisms on a board with that of published scores of the Long Range Arena."""

from collections import defaultdict
from statistics import mean

import numpy as np
from scipy.stats import rankdata, spearmanr

from . import published
from .standings import EXACT, standings
from .statistics import LEVEL, RESAMPLES, mean_over_tasks
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


def agreement_table(study: str, rows: list[Row]) -> Table | None:
    """Make the table of rank correlations with each published source; None if no source has enough mechanisms.

    Args:
        study: name of the board.
        rows: its results at the chosen rates.
    """
    found = standings(rows)
    tasks = {row.task for row in rows}
    board = {s.label: float(mean_over_tasks(list(s.shares.values()))) for s in found if s.shares.keys() == tasks}
    alone = {s.label: float(s.shares[LED].mean()) for s in found if LED in s.shares}
    lines = []
    for ours, wanted in ((board, ALL), (alone, (LED,))):
        for source, theirs in sorted(by_source(list(ours), wanted).items()):
            names = [label for label in ours if label in theirs]
            if len(names) >= FEWEST:
                lines.append(_line(source, wanted, [ours[n] for n in names], [theirs[n] for n in names]))
    if not lines:
        return None
    return Table(
        name=stem(f"agreement-{study}"),
        title=f"{study}: agreement with published scores",
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


def _line(source: str, wanted: tuple[str, ...], ours: list[float], theirs: list[float]) -> list[Cell | str]:
    value, (low, high) = spearmanr(ours, theirs).statistic, interval(ours, theirs)
    return [
        source,
        "all" if wanted == ALL else ", ".join(wanted),
        Cell.of(len(ours), str),
        Cell.of(float(value), n=len(ours)),
        Cell(text=f"{low:.2f} to {high:.2f}"),
    ]


def interval(ours: list[float], theirs: list[float], *, seed: int = 0) -> tuple[float, float]:
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
