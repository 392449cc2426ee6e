"""The standings of mechanisms on a study of ``sweep=board``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from .statistics import SOLVED, holm, interquartile_mean, interval, mean_over_tasks, normalised, permutation_test
from .summary import Row
from .table import Cell, Table, frame, stem

EXACT = "sdpa"
CONTROLS = ("none", "mean", "conv")  # mechanisms that cannot look anything up
MEANS = {"score": mean_over_tasks, "IQM": interquartile_mean}
STANDING = (
    "score: the share of the way from floor to 100, in percent, mean over tasks and seeds, with a 95 % bootstrap "
    "interval stratified by task. IQM: the interquartile mean of the same runs and its interval; it leaves out the "
    "lowest quarter of them, which can be a whole task. A seed that diverged counts as the floor. solved: seeds that "
    f"went {SOLVED:.0%} of the way. p: difference of the scores from {EXACT} and from the best control, permutations "
    "within each task, corrected for the number of mechanisms (Holm). Only mechanisms with runs on every task have "
    "these values."
)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A mechanism on the board.

    Args:
        label: its name.
        shares: shares by task of the way from floor to ceiling, one for each seed.
        collapsed: number of seeds that give every example the same answer.
    """

    label: str
    shares: dict[str, np.ndarray]
    collapsed: int

    @property
    def solved(self) -> int:
        """Number of seeds that went nearly the whole way."""
        return int(sum((values >= SOLVED).sum() for values in self.shares.values()))

    @property
    def n(self) -> int:
        """Number of seeds over all tasks."""
        return sum(map(len, self.shares.values()))


def floor(row: Row) -> float | None:
    """The floor that the records of a row share; None if one of them has none."""
    floors = {record.floor for record in row.runs.values()}
    return None if None in floors else max(floors)


def shares(row: Row) -> np.ndarray:
    """The share of the way that each seed of a row went; 0 for a seed that diverged.

    Raises:
        ValueError: a record says no floor.
    """
    if (low := floor(row)) is None:
        raise ValueError(f"{row.task} {row.label}: a record without a floor is not of a board")
    return np.array([normalised(score, low) for score in row.scores.values()] + [0.0] * row.lost)


def standings(rows: list[Row]) -> list[Standing]:
    """Collect the rows of each mechanism, in the order of their means over tasks, incomplete ones last."""
    by_label: dict[str, list[Row]] = {}
    for row in rows:
        if floor(row) is not None and row.runs:
            by_label.setdefault(row.label, []).append(row)
    made = [
        Standing(
            label=label,
            shares={row.task: shares(row) for row in of_label},
            collapsed=sum(len(row.collapsed) for row in of_label),
        )
        for label, of_label in by_label.items()
    ]
    return sorted(made, key=lambda s: (-len(s.shares), -mean_over_tasks(list(s.shares.values()))))


def standing_table(study: str, rows: list[Row]) -> Table:
    """Make the table of mechanisms over all tasks of a board.

    Args:
        study: its name.
        rows: its results at the chosen rates.
    """
    found = standings(rows)
    tasks = list(dict.fromkeys(row.task for row in rows))
    whole = {s.label: s for s in found if s.shares.keys() == set(tasks)}
    controls = [label for label in whole if label in CONTROLS]
    best = next(iter(controls), None)  # the order is that of the means
    over = {other: _p_values(whole, other) for other in (EXACT, best) if other in whole}
    lines = []
    for s in found:
        by_task = [s.shares.get(task) for task in tasks]
        cells = [percent(values) for values in by_task]
        summary = [Cell.of(None)] * len(MEANS)
        if s.label in whole:
            summary = [_with_interval(by_task, statistic) for statistic in MEANS.values()]
        solved = Cell(text=f"{s.solved}/{s.n}", value=s.solved / s.n)
        dead = Cell(text=f"{s.collapsed}/{s.n}" if s.collapsed else "0", value=s.collapsed)
        tests = [Cell.of(over.get(other, {}).get(s.label), "{:.3f}".format) for other in (EXACT, best)]
        lines.append([s.label, *summary, *cells, solved, dead, *tests])
    head = ("mechanism", *MEANS, *tasks, "solved", "collapsed", f"p ({EXACT})", f"p ({best or 'control'})")
    return Table(
        name=stem(f"board-{study}"),
        title=f"{study}: mechanisms",
        about=STANDING,
        cells=frame(head, lines, [(study, s.label, "") for s in found]),
    )


def _with_interval(scores: list[np.ndarray], statistic: Callable) -> Cell:
    """A cell of a mean with its interval, in percent."""
    value, low, high = (100 * share for share in (float(statistic(scores)), *interval(scores, statistic)))
    n = sum(map(len, scores))
    return Cell(text=f"{value:.1f} ({low:.1f} to {high:.1f})", value=value, low=low, high=high, n=n)


def _p_values(whole: Mapping[str, Standing], other: str) -> dict[str, float]:
    against = list(whole[other].shares.items())
    return holm(
        {
            label: permutation_test([s.shares[task] for task, _ in against], [values for _, values in against])
            for label, s in whole.items()
            if label != other
        }
    )


def percent(values: np.ndarray | None) -> Cell:
    """Make a cell of the mean of shares, ± their sample standard deviation, in percent."""
    if values is None:
        return Cell.of(None)
    mean, n = 100 * float(values.mean()), len(values)
    std = 100 * float(values.std(ddof=1)) if n > 1 else None
    return Cell(text=f"{mean:.1f}" + (f" ± {std:.1f}" if n > 1 else ""), value=mean, std=std, n=n)
