"""What mechanisms cost: records of ``python -m lra.bench`` -> tables and pictures."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.console import Group as Lines
from rich.table import Table as Lined
from rich.text import Text

from ..runs.bench_record import BenchRecord, Row
from ..runs.record import RunRecord
from . import published
from .costs import Group, groups, growth, label, number
from .grid import Cell, Entry, Grid, Part, Picture
from .plots import pictures, slug

DETAILED = 60  # rows of a group; where there are more, only the table over lengths is made
LEGEND = (
    "ms: median of n samples, spread: (largest - smallest) / median; MB: most allocated at once during a call, without "
    "parameters, optimiser state and inputs, which all contestants hold at the same time; GB/s and TFLOP/s: the bytes "
    "that any attention has to move and the FLOPs of its matrix products, over the time; roofline: the time that these "
    "take at the machine's measured copy bandwidth and matmul rate; growth: exponent of n over the last two doublings."
)
PAPER = {"speedup_vs_transformer": "paper: speed", "peak_memory_ratio_vs_transformer": "paper: memory"}


class Table(NamedTuple):
    """head: names of columns; rows: a text for each of them."""

    title: str
    about: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]


def tables(records: Iterable[BenchRecord]) -> list[Table]:
    """For each group a table over lengths where there are several, and one of every number."""
    found = []
    for group in groups(records):
        if len(group.lengths) > 1:
            found.append(_over_lengths(group))
        if len(group.lengths) == 1 or len(group.rows) <= DETAILED:
            found.append(_details(group))
    return found


def _about(source: BenchRecord) -> str:
    m = source.machine
    allocator = " ".join(f"{key}={value}" for key, value in m.allocator.items()) or "default"
    rates = ", ".join(f"{rate / 1e12:.3g} TFLOP/s {dtype}" for dtype, rate in m.matmul.items())
    return (
        f"{m.hardware}, {m.threads} threads, torch {m.torch}; copy {m.copy / 1e9:.4g} GB/s, matmul {rates}; "
        f"allocator {allocator}; load {m.load}; commit {source.git or 'unknown'}"
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
    return Table(f"{group.title}: ms over n", _about(group.source), head, rows)


def _details(group: Group) -> Table:
    beside = _paper() if (group.rows[0].what, group.rows[0].mode) == ("step", "training") else {}
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
            cells[at] = beside.get((row.mechanism, metric), "-")
        rows.append(tuple(cells))
    shown = [i for i in range(len(head)) if i < 3 or any(row[i] not in ("-", "") for row in rows)]
    about = _about(group.source)
    if group.source.choices.get("reference"):
        about += f"; speed and memory relative to {group.source.choices['reference']}"
    pick = lambda cells: tuple(cells[i] for i in shown)
    return Table(group.title, about, pick(head), [pick(row) for row in rows])


def _paper() -> dict[tuple[str, str], str]:
    """What CURformer's Table 2 prints, by word of conf/attn and metric."""
    return {
        (word, row.metric): row.value for row in published.read() if row.metric in PAPER for word in row.attn.split()
    }


def _spread(row: Row) -> float:
    return (max(row.samples) - min(row.samples)) / row.ms


def terminal(table: Table) -> Lines:
    grid = Lined(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for i, name in enumerate(table.head):
        grid.add_column(name, justify="right" if i > 0 and name != "status" else "left", overflow="fold")
    for row in table.rows:
        grid.add_row(*row)
    return Lines(Text(table.title, "bold underline"), table.about, grid)


def markdown(tables: Iterable[Table]) -> str:
    """The same for GitHub, below one heading."""
    out = ["# Efficiency", LEGEND]
    for table in tables:
        lines = [table.head, ("---",) * len(table.head), *table.rows]
        text = ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in lines]
        out += [f"## {table.title}", f"{table.about}.", "\n".join(text)]
    return "\n\n".join(out) + "\n"


def show(console: Console, records: Sequence[BenchRecord]) -> None:
    for table in tables(records):
        console.print(terminal(table), "")
    console.print(LEGEND)


def chapter(records: Sequence[BenchRecord], out: Path, trained: Iterable[RunRecord] = ()) -> Part:
    """The tables and pictures for the report in ``out``; pictures go to out/efficiency. OSError as it comes."""
    shown = []
    for path in pictures(records, out / "efficiency", trained):
        svg = path.with_suffix(".svg").read_text()
        title = path.stem.replace("-", " ")
        shown.append(Picture(title, f"{path.parent.name}/{path.name}", svg[svg.index("<svg") :]))
    return Part("Efficiency", LEGEND, [_grid(i, table) for i, table in enumerate(tables(records))], tuple(shown))


def _grid(place: int, table: Table) -> Grid:
    cells = [[Cell(text=text, value=_value(text) if i else None) for i, text in enumerate(row)] for row in table.rows]
    name = f"efficiency-{place}-{slug(table.title)}"
    return Grid(name, table.title, f"{table.about}.", table.head, [Entry(row) for row in cells])


def _value(text: str) -> float | None:
    """The number that a cell shows, a percentage as a fraction."""
    plain = text.replace(",", "")
    try:
        return float(plain[:-1]) / 100 if plain.endswith("%") else float(plain)
    except ValueError:
        return None
