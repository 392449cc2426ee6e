"""Tables of the cost of mechanisms, from records of ``python -m lra.bench``."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..console import visible
from ..runs.bench_record import BenchRecord, BenchRow
from . import published
from .table import Cell, Table, frame, stem

DETAILED = 60  # rows of a group; a larger group gets the table over lengths only
LEGEND = (
    "ms: median of n samples, spread: (largest - smallest) / median; MB: most allocated at once during a call, without "
    "parameters, optimiser state and inputs, which all contestants hold at the same time; GB/s and TFLOP/s: the bytes "
    "that any attention has to move and the FLOPs of its matrix products, over the time; roofline: the time that these "
    "take at the machine's measured copy bandwidth and matmul rate; growth: exponent of n over the last two doublings."
)
PAPER = {"speedup_vs_transformer": "paper: speed", "peak_memory_ratio_vs_transformer": "paper: memory"}


class Group(NamedTuple):
    """The rows of one record that differ only in mechanism, padding and n."""

    source: BenchRecord
    title: str
    rows: list[BenchRow]

    @property
    def lengths(self) -> list[int]:
        """Every n, in order."""
        return sorted({row.n for row in self.rows})

    def over_n(self) -> dict[str, list[BenchRow]]:
        """The rows of each contestant that have a time, in order of length."""
        timed: dict[str, list[BenchRow]] = {label(row): [] for row in self.rows}
        for row in sorted(self.rows, key=lambda row: row.n):
            if row.ms is not None:
                timed[label(row)].append(row)
        return timed

    def reference(self, n: int) -> BenchRow | None:
        """The reference row of a length, that of fixed padding if there are several; None without one."""
        same = [row for row in self.rows if row.n == n and row.mechanism == self.source.choices.get("reference")]
        return min((row for row in same if row.ms), key=lambda row: row.pad != "fixed", default=None)


def groups(records: Iterable[BenchRecord]) -> list[Group]:
    """Group the rows of each record by all but mechanism, padding and n.

    Steps in several dtypes were measured in turn and are one group; those that are not in the first have it in the name
    of their mechanism.
    """
    grouped: dict[tuple, list[BenchRow]] = defaultdict(list)
    listed = list(records)
    for i, bench_record in enumerate(listed):
        dtypes = bench_record.choices.get("dtype", [])
        for row in bench_record.rows:
            kind = row.dtype
            if row.what == "step" and row.dtype in dtypes[1:]:
                kind, row = dtypes[0], replace(row, mechanism=f"{row.mechanism} in {row.dtype}")
            grouped[i, row.what, row.mode, row.task, row.batch, row.heads, row.head_dim, kind].append(row)
    return [
        Group(
            listed[i],
            f"{listed[i].name}: {' of '.join(filter(None, (what, task)))}, {mode}, batch {batch}, "
            f"{heads} heads of {head_dim}, {dtype}",
            rows,
        )
        for (i, what, mode, task, batch, heads, head_dim, dtype), rows in grouped.items()
    ]


def label(row: BenchRow) -> str:
    """Name a contestant: its mechanism and, for batches of real data, its padding."""
    return visible(row.mechanism if row.pad is None else f"{row.mechanism}, {row.pad} padding")


def growth(points: Sequence[tuple[int, float | None]]) -> float | None:
    """Exponent of n: log(value ratio) / log(n ratio) over the last two doublings of (n, value); None for fewer."""
    done = [(n, value) for n, value in points if value]
    if len(done) < 3:
        return None
    (a, x), (b, y) = done[-3], done[-1]
    return math.log(y / x) / math.log(b / a)


def number(value: float | None) -> str:
    """Format a number with three significant digits below 100; "-" for None."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def tables(records: Iterable[BenchRecord]) -> list[Table]:
    """Make a table over lengths for each group with several, and one of every number."""
    made_tables = []
    for group in groups(records):
        if group.rows[0].what == "error":
            made_tables.append(_errors(group))
            continue
        if len(group.lengths) > 1:
            made_tables.append(_over_lengths(group))
        if len(group.lengths) == 1 or len(group.rows) <= DETAILED:
            made_tables.append(_details(group))
    return [replace(table, name=stem(f"efficiency-{i}-{table.title}")) for i, table in enumerate(made_tables)]


def _about(source: BenchRecord) -> str:
    m = source.machine
    allocator = " ".join(f"{key}={value}" for key, value in m.allocator.items()) or "default"
    rates = ", ".join(f"{rate / 1e12:.3g} TFLOP/s {dtype}" for dtype, rate in m.matmul.items())
    return (
        f"{m.hardware}, {m.threads} threads, torch {m.torch}; copy {m.copy / 1e9:.4g} GB/s, matmul {rates}; "
        f"allocator {allocator}; load {m.load}; commit {source.git or 'unknown'}"
        + ("; ms of CPU time" if source.choices.get("clock") == "cpu" else "")
    )


def _over_lengths(group: Group) -> Table:
    rows = []
    for name, mine in group.over_n().items():
        cells = {row.n: number(row.ms) for row in mine}
        claimed = next(row.claimed for row in group.rows if label(row) == name)
        grown = [growth([(row.n, value(row)) for row in mine]) for value in (lambda r: r.ms, lambda r: r.peak_bytes)]
        rows.append(
            (
                name,
                *(cells.get(n, "-") for n in group.lengths),
                f"{max(map(_spread, mine)):.0%}" if mine else "-",
                number(mine[-1].peak_bytes / 2**20) if mine and mine[-1].peak_bytes is not None else "-",
                *("-" if g is None else f"{g:.2f}" for g in grown),
                f"{claimed:g}",
            )
        )
    head = ("mechanism", *map("{:,}".format, group.lengths), "spread", "MB", "growth", "MB growth", "claimed")
    return _table(f"{group.title}: ms over n", _about(group.source), head, rows)


def _errors(group: Group) -> Table:
    """Make a table of rounding errors, with a line for each contestant and columns for each length."""
    by_contestant: dict[str, dict[int, BenchRow]] = defaultdict(dict)
    for row in group.rows:
        by_contestant[label(row)][row.n] = row
    parts = ("output", "gradients") if group.rows[0].mode == "training" else ("output",)
    lines = []
    for name, rows in by_contestant.items():
        at = [rows[n].errors or () for n in group.lengths]
        cells = [f"{found[i]:.1e}" if found else "-" for found in at for i in range(len(parts))]
        lines.append((name, *cells, "; ".join(sorted({row.status for row in rows.values()} - {"ok"}))))
    head = ("mechanism", *(f"{part}, n = {n:,}" for n in group.lengths for part in parts), "status")
    about = f"||x - y|| / ||y|| in the 2-norm, y in float64 with the same weights and inputs; {_about(group.source)}"
    return _table(f"{group.title}: rounding error", about, head, lines)


def _details(group: Group) -> Table:
    printed = _paper() if (group.rows[0].what, group.rows[0].mode) == ("step", "training") else {}
    head = ("mechanism", "n", "ms", "spread", "samples", "MB", "GB/s", "TFLOP/s", "roofline ms", "x roofline")
    head += ("speed", "memory", *PAPER.values(), "status")
    rows = []
    for row in sorted(group.rows, key=lambda row: row.n):
        cells = [label(row), f"{row.n:,}"] + ["-"] * (len(head) - 3) + ["" if row.status == "ok" else row.status]
        if row.ms is not None:
            seconds, base = row.ms / 1000, group.reference(row.n)
            cells[2:6] = number(row.ms), f"{_spread(row):.0%}", str(len(row.samples)), number(row.peak_bytes / 2**20)
            if row.roofline_bytes:
                cells[6] = number(row.roofline_bytes / seconds / 1e9)
                cells[8:10] = number(row.roofline_ms), number(row.ms / row.roofline_ms)
            if row.flops:
                cells[7] = number(row.flops / seconds / 1e12)
            if base:
                cells[10:12] = number(base.ms / row.ms), f"{row.peak_bytes / max(base.peak_bytes, 1):.2f}"
        for at, metric in enumerate(PAPER, 12):
            cells[at] = printed.get((row.mechanism, metric), "-")
        rows.append(tuple(cells))
    shown = [i for i in range(len(head)) if i < 3 or any(row[i] not in ("-", "") for row in rows)]
    about = _about(group.source)
    if group.source.choices.get("reference"):
        about += f"; speed and memory relative to {group.source.choices['reference']}"
    pick = lambda cells: tuple(cells[i] for i in shown)
    return _table(group.title, about, pick(head), [pick(row) for row in rows])


def _paper() -> dict[tuple[str, str], str]:
    """Values of CURformer's Table 2 by name of conf/attn and metric."""
    return {
        (word, row.metric): row.value for row in published.read() if row.metric in PAPER for word in row.attn.split()
    }


def _spread(row: BenchRow) -> float:
    return (max(row.samples) - min(row.samples)) / row.ms


def markdown(tables: Iterable[Table]) -> str:
    """Format the tables as Markdown, below one heading."""
    return "\n\n".join(["# Efficiency", LEGEND, *(table.section(2) for table in tables)]) + "\n"


def _table(title: str, about: str, head: Sequence[str], rows: list[tuple[str, ...]]) -> Table:
    lines = [[name, *(Cell(text=text, value=_value(text)) for text in others)] for name, *others in rows]
    return Table(name="", title=title, about=f"{about}.", cells=frame(head, lines), words=("mechanism", "status"))


def _value(text: str) -> float | None:
    """Parse the number in the text of a cell, a percentage as a fraction; None if it has none."""
    plain = text.replace(",", "")
    try:
        return float(plain[:-1]) / 100 if plain.endswith("%") else float(plain)
    except ValueError:
        return None
