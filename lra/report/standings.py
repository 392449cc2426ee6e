"""The tables of the mechanisms of a study of ``sweep=board``: their standings, and when they leave the plateau."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np

from ..runs import reader
from ..runs.bench_record import BenchRecord
from .palette import CONTROL, FAMILIES
from .statistics import SOLVED, holm, interquartile_mean, interval, mean_over_tasks, normalised, permutation_test
from .summary import Row
from .table import Cell, Table, frame, stem

EXACT = "sdpa"
CONTROLS = FAMILIES[CONTROL]  # mechanisms that cannot look anything up
NEAR = 0.2  # share of the way up to which a run is still near the floor
MEANS = {"score": mean_over_tasks, "IQM": interquartile_mean}
STANDING = (
    "score: the share of the way from floor to 100, in percent, mean over tasks and seeds, with a 95 % bootstrap "
    "interval stratified by task. IQM: the interquartile mean of the same runs and its interval; it leaves out the "
    "lowest quarter of them, which can be a whole task. A seed that diverged counts as the floor. solved: seeds that "
    f"went {SOLVED:.0%} of the way. p: difference of the scores from {EXACT} and from the best control, permutations "
    "within each task, corrected for the number of mechanisms (Holm). Only mechanisms with runs on every task have "
    "these values."
)
PLATEAU = (
    f"Step of the first evaluation whose dev score is {NEAR:.0%} of the way from floor to 100, median over the seeds "
    "that get there; (k/n): k of n seeds do, if not all. Each mechanism at its own best rate. A mechanism that leaves "
    "late may solve the task with a longer training; one without a number shows what this number of steps allows. "
    "Mechanisms that leave no task's plateau are not listed."
)


def floor(row: Row) -> float:
    """The floor of a row: that of its records, which is the best constant answer in one that says none."""
    return max(r.constant_baseline if r.floor is None else r.floor for r in row.runs.values())


def shares(row: Row) -> np.ndarray:
    """The share of the way that each seed of a row went; 0 for a seed that diverged."""
    low = floor(row)
    return np.array([normalised(score, low) for score in row.scores.values()] + [0.0] * row.lost)


@dataclass(frozen=True)
class BoardResults:
    """A study of ``sweep=board``.

    Args:
        name: its name.
        rows: its results at the chosen rates.
        search: results of its search over rates.
        measured: benchmarks, for the costs of mechanisms.
    """

    name: str
    rows: Sequence[Row]
    search: Sequence[Row] = ()
    measured: Sequence[BenchRecord] = ()

    @cached_property
    def tasks(self) -> list[str]:
        """The tasks of the results, in their order."""
        return list(dict.fromkeys(row.task for row in self.rows))

    @cached_property
    def shares(self) -> dict[str, dict[str, np.ndarray]]:
        """The shares of each mechanism by task, in the order of their means over tasks, incomplete ones last."""
        found: dict[str, dict[str, np.ndarray]] = {}
        for row in self.rows:
            found.setdefault(row.label, {})[row.task] = shares(row)
        place = lambda label: (-len(found[label]), -mean_over_tasks(list(found[label].values())))
        return {label: found[label] for label in sorted(found, key=place)}

    @cached_property
    def complete(self) -> dict[str, list[np.ndarray]]:
        """The shares on every task of the mechanisms that have runs on all of them, in the order of ``shares``."""
        return {k: list(by_task.values()) for k, by_task in self.shares.items() if len(by_task) == len(self.tasks)}


def standing_table(board: BoardResults) -> Table:
    """Make the table of mechanisms over all tasks of a board."""
    whole = board.complete
    best = next((label for label in whole if label in CONTROLS), None)  # the order is that of the means
    over = {other: _p_values(whole, other) for other in (EXACT, best) if other in whole}
    lines = []
    for label, by_task in board.shares.items():
        means = [Cell.of(None)] * len(MEANS)
        if label in whole:
            means = [with_interval(whole[label], statistic) for statistic in MEANS.values()]
        every = np.concatenate(list(by_task.values()))
        solved, dead = int((every >= SOLVED).sum()), sum(len(r.collapsed) for r in board.rows if r.label == label)
        lines.append(
            [
                label,
                *means,
                *(percent(by_task.get(task)) for task in board.tasks),
                Cell(text=f"{solved}/{len(every)}", value=solved / len(every)),
                Cell(text=f"{dead}/{len(every)}" if dead else "0", value=dead),
                *(Cell.of(over.get(other, {}).get(label), "{:.3f}".format) for other in (EXACT, best)),
            ]
        )
    head = ("mechanism", *MEANS, *board.tasks, "solved", "collapsed", f"p ({EXACT})", f"p ({best or 'control'})")
    return Table(
        name=stem(f"board-{board.name}"),
        title=f"{board.name}: mechanisms",
        about=STANDING,
        cells=frame(head, lines, [(board.name, label, "") for label in board.shares]),
    )


def with_interval(scores: Sequence[np.ndarray], statistic: Callable) -> Cell:
    """Make a cell of a mean of shares with its interval, in percent."""
    value, low, high = (100 * share for share in (float(statistic(scores)), *interval(scores, statistic)))
    n = sum(map(len, scores))
    return Cell(text=f"{value:.1f} ({low:.1f} to {high:.1f})", value=value, low=low, high=high, n=n)


def _p_values(whole: dict[str, list[np.ndarray]], other: str) -> dict[str, float]:
    return holm({label: permutation_test(s, whole[other]) for label, s in whole.items() if label != other})


def percent(values: np.ndarray | None) -> Cell:
    """Make a cell of the mean of shares, ± their sample standard deviation, in percent."""
    if values is None:
        return Cell.of(None)
    mean, n = 100 * float(values.mean()), len(values)
    std = 100 * float(values.std(ddof=1)) if n > 1 else None
    return Cell(text=f"{mean:.1f}" + (f" ± {std:.1f}" if n > 1 else ""), value=mean, std=std, n=n)


def plateau_table(board: BoardResults) -> Table | None:
    """Make a line for each mechanism that left the plateau of a task; None if no run did."""
    found = {(row.label, row.task): _plateau(row) for row in board.rows}
    left = [label for label in board.shares if any(cell.value for (of, _), cell in found.items() if of == label)]
    if not left:
        return None
    steps = {
        task: max(r.steps for row in board.rows if row.task == task for r in row.runs.values()) for task in board.tasks
    }
    return Table(
        name=stem(f"plateaus-{board.name}"),
        title=f"{board.name}: steps until the plateau is left",
        about=PLATEAU,
        cells=frame(
            ("mechanism", *(f"{task}, of {most:,}" for task, most in steps.items())),
            [[label, *(found.get((label, task), Cell.of(None)) for task in board.tasks)] for label in left],
            [(board.name, label, "") for label in left],
        ),
    )


def _plateau(row: Row) -> Cell:
    """Make a cell of the median step at which the runs of a row leave the plateau."""
    left, n, low = [], len(row.runs), floor(row)
    for folder in row.runs:
        with suppress(ValueError):  # the report names the damaged file
            dev = reader.read_curves(folder).get("val", {})
            left += [step for step, score in dev.items() if normalised(score, low) >= NEAR][:1]
    some = f" ({len(left)}/{n})" if len(left) < n else ""
    return Cell(text=f"{median(left):,.0f}{some}" if left else f"-{some}", value=median(left) if left else None, n=n)
