"""Errors in percent over the length of a task: those of finished runs, and the published ones."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ...report import published
from ...runs.record import RunRecord

TASKS = ("adding", "temporal_order")
FIGURE = ("PSF-Attn", "text of Section 5.2 (Fig. 5)")  # paper and table of published.csv
_NAME = re.compile(rf"({'|'.join(TASKS)})_N(\d+)(?:_to_N(\d+))?")


@dataclass(frozen=True, kw_only=True)
class Point:
    """One mechanism at one length.

    Args:
        errors: 100 less the test score, by seed; seeds that diverged have none.
        constant: error of the best constant answer on the same test examples.
        diverged: number of such seeds.
    """

    task: str
    length: int
    label: str
    errors: dict[int, float]
    constant: float
    diverged: int
    budget: str


@dataclass(frozen=True, kw_only=True)
class Printed:
    """A number of the paper, which may hold for several lengths.

    Args:
        model: the paper's name of the mechanism.
        attn: the name of conf/attn that corresponds to it.
        error: error in percent.
    """

    task: str
    lengths: tuple[int, ...]
    model: str
    attn: str
    error: float


def measured(records: Iterable[RunRecord]) -> list[Point]:
    """Group the runs of tasks of ``TASKS`` by task, length and mechanism, in this order; other runs are left out."""
    groups: dict[tuple[str, int, str], list[RunRecord]] = {}
    for r in records:
        if (found := _NAME.fullmatch(r.task)) and not found[3]:
            groups.setdefault((found[1], int(found[2]), r.label), []).append(r)
    return [
        Point(
            task=task,
            length=length,
            label=label,
            errors={r.seed: 100 - r.test for r in some if r.status == "done"},
            constant=100 - some[0].constant_baseline,
            diverged=sum(r.status == "diverged" for r in some),
            budget=some[0].budget,
        )
        for (task, length, label), some in sorted(groups.items())
    ]


def printed() -> list[Printed]:
    """List the numbers that the paper gives for its Figure 5 in the text, the only ones that are not read off a curve.

    A number for a range of lengths counts for every power of two in it.
    """
    found = []
    for row in published.read():
        if (row.name, row.table) == FIGURE:
            task, first, last = _NAME.fullmatch(row.task).groups()
            lengths = tuple(2**i for i in range(20) if int(first) <= 2**i <= int(last or first))
            error = row.number if row.metric == "error_percent" else round(100 - row.number, 2)
            found.append(Printed(task=task, lengths=lengths, model=row.model, attn=row.attn, error=error))
    return found
