"""Benchmark rows grouped for tables and figures: one group for each shape, with all mechanisms and lengths."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..results.bench_record import BenchRecord, BenchRow

# Fields that the rows of a group share, in addition to the dtype.
KIND = ("what", "mode", "task", "batch", "heads", "head_dim")
MEBIBYTE = 2**20


class Group(NamedTuple):
    """The rows of one record that differ only in mechanism, padding and n; steps also in dtype."""

    source: BenchRecord
    title: str
    rows: list[BenchRow]

    @property
    def lengths(self) -> list[int]:
        """Every n, in order."""
        return sorted({row.n for row in self.rows})

    @property
    def timed_lengths(self) -> list[int]:
        """Every n at which a contestant has a time, in order."""
        return sorted({row.n for row in self.rows if row.ms is not None})

    def over_n(self) -> dict[str, list[BenchRow]]:
        """Return the rows of each contestant that have a time, in order of length."""
        # A contestant without any time keeps an empty list.
        rows_of: dict[str, list[BenchRow]] = {label(row): [] for row in self.rows}
        for row in sorted(self.rows, key=lambda row: row.n):
            if row.ms is not None:
                rows_of[label(row)].append(row)
        return rows_of

    def reference(self, n: int) -> BenchRow | None:
        """Return a timed row of the reference at a length, preferably of fixed padding; None without one."""
        name = self.source.choices.get("reference")
        rows = [row for row in self.rows if row.n == n and row.mechanism == name]
        timed_rows = [row for row in rows if row.ms]
        return min(timed_rows, key=lambda row: row.pad != "fixed", default=None)


def groups(records: Iterable[BenchRecord]) -> list[Group]:
    """Group the rows of each record by everything except mechanism, padding and n.

    Steps in several dtypes were measured alternately and are one group: rows of later dtypes have theirs in the name of
    the mechanism.

    Args:
        records: records of benchmarks.
    """
    all_groups = []
    for source in records:
        rows_of_kind: dict[tuple, list[BenchRow]] = defaultdict(list)
        dtypes = source.choices.get("dtype", [])
        for row in source.rows:
            # Steps of later dtypes join the group of the first one.
            dtype = row.dtype
            if row.what == "step" and dtype in dtypes[1:]:
                row = replace(row, mechanism=f"{row.mechanism} in {dtype}")
                dtype = dtypes[0]
            kind = tuple(getattr(row, field) for field in KIND)
            rows_of_kind[*kind, dtype].append(row)
        for key, rows in rows_of_kind.items():
            title = _title(source, *key)
            all_groups.append(Group(source, title, rows))
    return all_groups


def _title(
    source: BenchRecord,
    operation: str,
    mode: str,
    task: str | None,
    batch: int,
    heads: int,
    head_dim: int,
    dtype: str,
) -> str:
    subject = f"{operation} of {task}" if task else operation
    return f"{source.name}: {subject}, {mode}, batch {batch}, {heads} heads of {head_dim}, {dtype}"


def label(row: BenchRow) -> str:
    """Name a contestant: its mechanism and, for batches of real data, its padding."""
    return row.mechanism if row.pad is None else f"{row.mechanism}, {row.pad} padding"


def growth(values: Mapping[int, float | None], lengths: Sequence[int]) -> float | None:
    """Estimate the exponent of n over the last three lengths: log(value ratio) / log(n ratio) of the outer two.

    Args:
        values: values by n.
        lengths: the group's ``timed_lengths``, so that its exponents are over the same ones.

    Returns:
        The exponent; None for fewer than three lengths, or if there is no value at one of the last three.
    """
    points = [(n, values.get(n)) for n in lengths[-3:]]
    measured = [(n, value) for n, value in points if value]
    if len(measured) < 3:
        return None
    # Two doublings if n doubles from length to length.
    first_n, first_value = measured[0]
    last_n, last_value = measured[-1]
    value_ratio = last_value / first_value
    length_ratio = last_n / first_n
    return math.log(value_ratio) / math.log(length_ratio)


def three_digits(value: float) -> str:
    """Format a number with three significant digits, and the whole part of a larger one: 0.0123, 45.6, 7,890."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.3g}"
