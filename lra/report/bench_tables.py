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
KIND = ("what", "mode", "task", "batch", "heads", "head_dim")  # fields that the rows of a group share
NUMBERS = ("ms", "spread", "samples", "MB", "GB/s", "TFLOP/s", "roofline ms", "x roofline", "speed", "memory")
NONE = Cell.of(None)


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
    made = []
    for source in records:
        grouped: dict[tuple, list[BenchRow]] = defaultdict(list)
        dtypes = source.choices.get("dtype", [])
        for row in source.rows:
            dtype = row.dtype
            if row.what == "step" and dtype in dtypes[1:]:
                dtype, row = dtypes[0], replace(row, mechanism=f"{row.mechanism} in {dtype}")
            grouped[*(getattr(row, field) for field in KIND), dtype].append(row)
        for (what, mode, task, batch, heads, head_dim, dtype), rows in grouped.items():
            subject = f"{what} of {task}" if task else what
            title = f"{source.name}: {subject}, {mode}, batch {batch}, {heads} heads of {head_dim}, {dtype}"
            made.append(Group(source, title, rows))
    return made


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


def number(value: float) -> str:
    """Format a number with three significant digits below 100."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def tables(records: Iterable[BenchRecord]) -> list[Table]:
    """Make a table over lengths for each group with several, and one of every number."""
    made = []
    for group in groups(records):
        if group.rows[0].what == "error":
            made.append(_errors(group))
            continue
        if len(group.lengths) > 1:
            made.append(_over_lengths(group))
        if len(group.lengths) == 1 or len(group.rows) <= DETAILED:
            made.append(_details(group))
    return [replace(table, name=stem(f"efficiency-{i}-{table.title}")) for i, table in enumerate(made)]


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
    claimed = {label(row): row.claimed for row in group.rows}
    lines = []
    for name, rows in group.over_n().items():
        line = {"mechanism": name} | {f"{n:,}": NONE for n in group.lengths}
        line |= {f"{row.n:,}": Cell.of(row.ms, number) for row in rows}
        line["spread"] = Cell.of(max(map(_spread, rows), default=None), "{:.0%}".format)
        line["MB"] = Cell.of(rows[-1].peak_bytes / 2**20 if rows else None, number)
        for column, of in (("growth", "ms"), ("MB growth", "peak_bytes")):
            line[column] = Cell.of(growth([(row.n, getattr(row, of)) for row in rows]), "{:.2f}".format)
        lines.append(line | {"claimed": Cell.of(claimed[name], "{:g}".format)})
    return _table(f"{group.title}: ms over n", _about(group.source), lines)


def _errors(group: Group) -> Table:
    """Make a table of rounding errors, with a line for each contestant and columns for each length."""
    by_contestant: dict[str, dict[int, BenchRow]] = defaultdict(dict)
    for row in group.rows:
        by_contestant[label(row)][row.n] = row
    parts = ("output", "gradients") if group.rows[0].mode == "training" else ("output",)
    lines = []
    for name, rows in by_contestant.items():
        line = {"mechanism": name}
        for n in group.lengths:
            errors = rows[n].errors if n in rows else None
            pairs = zip(parts, errors or [None] * len(parts), strict=True)
            line |= {f"{part}, n = {n:,}": Cell.of(error, "{:.1e}".format) for part, error in pairs}
        lines.append(line | {"status": "; ".join(sorted({row.status for row in rows.values()} - {"ok"}))})
    about = f"||x - y|| / ||y|| in the 2-norm, y in float64 with the same weights and inputs; {_about(group.source)}"
    return _table(f"{group.title}: rounding error", about, lines)


def _details(group: Group) -> Table:
    """Make a table of every number; columns that no row has are left out."""
    compared = (group.rows[0].what, group.rows[0].mode) == ("step", "training")
    printed = {(word, v.metric): v.number for v in published.read() if v.metric in PAPER for word in v.attn.split()}
    lines = []
    for row in sorted(group.rows, key=lambda row: row.n):
        line = {"mechanism": label(row), "n": Cell.of(row.n, "{:,}".format)} | dict.fromkeys(NUMBERS, NONE)
        if row.ms is not None:
            line |= {"ms": Cell.of(row.ms, number), "spread": Cell.of(_spread(row), "{:.0%}".format)}
            line |= {"samples": Cell.of(len(row.samples), str), "MB": Cell.of(row.peak_bytes / 2**20, number)}
            if row.roofline_bytes:
                line["GB/s"] = Cell.of(row.roofline_bytes / row.ms / 1e6, number)
                line["roofline ms"] = Cell.of(row.roofline_ms, number)
                line["x roofline"] = Cell.of(row.ms / row.roofline_ms, number)
            if row.flops:
                line["TFLOP/s"] = Cell.of(row.flops / row.ms / 1e9, number)
            if base := group.reference(row.n):
                line["speed"] = Cell.of(base.ms / row.ms, number)
                line["memory"] = Cell.of(row.peak_bytes / max(base.peak_bytes, 1), "{:.2f}".format)
        for metric, name in PAPER.items() if compared else ():
            line[name] = Cell.of(printed.get((row.mechanism, metric)), "{:g}".format)
        lines.append(line | {"status": "" if row.status == "ok" else row.status})
    head = [name for name in lines[0] if name == "ms" or any(line[name] not in (NONE, "") for line in lines)]
    about = _about(group.source)
    if reference := group.source.choices.get("reference"):
        about += f"; speed and memory relative to {reference}"
    return _table(group.title, about, [{name: line[name] for name in head} for line in lines])


def _spread(row: BenchRow) -> float:
    return (max(row.samples) - min(row.samples)) / row.ms


def markdown(tables: Iterable[Table]) -> str:
    """Format the tables as Markdown, below one heading."""
    return "\n\n".join(["# Efficiency", LEGEND, *(table.section(2) for table in tables)]) + "\n"


def _table(title: str, about: str, lines: list[dict[str, Cell | str]]) -> Table:
    cells = frame(list(lines[0]), [line.values() for line in lines])
    return Table(name="", title=title, about=f"{about}.", cells=cells, words=("mechanism", "status"))
