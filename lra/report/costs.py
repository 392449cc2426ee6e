"""Rows of benchmarks in groups that compare, and what a group says about growth with n."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..runs.bench_record import BenchRecord, Row


class Group(NamedTuple):
    """Rows of one record that differ in mechanism, padding and n only, measured on the same machine."""

    source: BenchRecord
    title: str
    rows: list[Row]

    @property
    def lengths(self) -> list[int]:
        return sorted({row.n for row in self.rows})

    def over_n(self) -> dict[str, list[Row]]:
        """Each contestant's rows that have a time, by length."""
        found: dict[str, list[Row]] = {label(row): [] for row in self.rows}
        for row in sorted(self.rows, key=lambda row: row.n):
            if row.ms is not None:
                found[label(row)].append(row)
        return found

    def reference(self, n: int) -> Row | None:
        """The row of that length that others are compared with, of the fixed padding where there are several."""
        same = [row for row in self.rows if row.n == n and row.mechanism == self.source.choices.get("reference")]
        return min((row for row in same if row.ms), key=lambda row: row.pad != "fixed", default=None)


def groups(records: Iterable[BenchRecord]) -> list[Group]:
    found: dict[tuple, list[Row]] = defaultdict(list)
    kept = list(records)
    for i, one in enumerate(kept):
        for row in one.rows:
            found[i, row.what, row.mode, row.task, row.batch, row.heads, row.head_dim, row.dtype].append(row)
    return [
        Group(
            kept[i],
            f"{kept[i].name}: {' of '.join(filter(None, (what, task)))}, {mode}, batch {batch}, "
            f"{heads} heads of {head_dim}, {dtype}",
            rows,
        )
        for (i, what, mode, task, batch, heads, head_dim, dtype), rows in found.items()
    ]


def label(row: Row) -> str:
    return row.mechanism if row.pad is None else f"{row.mechanism}, {row.pad} padding"


def growth(points: Sequence[tuple[int, float | None]]) -> float | None:
    """log(value ratio) / log(n ratio) over the last two doublings of (n, value); None where there are fewer."""
    done = [(n, value) for n, value in points if value]
    if len(done) < 3:
        return None
    (a, x), (b, y) = done[-3], done[-1]
    return math.log(y / x) / math.log(b / a)


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"
