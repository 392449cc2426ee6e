"""What mechanisms cost: records of ``python -m lra.bench`` -> tables and pictures."""

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from rich import box
from rich.console import Group as Lines
from rich.table import Table as Grid
from rich.text import Text

from .. import published
from ..bench.record import BenchRecord, Row
from ..record import RunRecord

DETAILED = 60  # rows of a group; where there are more, only the table over lengths is made
COLOURED = 12  # lines of a picture with a colour of their own
LEGEND = (
    "ms: median of n samples, spread: (largest - smallest) / median; MB: most allocated at once during a call, without "
    "parameters, optimiser state and inputs, which all contestants hold at the same time; GB/s and TFLOP/s: the bytes "
    "that any attention has to move and the FLOPs of its matrix products, over the time; floor: the time that these "
    "take at the machine's measured copy bandwidth and matmul rate; growth: exponent of n over the last two doublings."
)
PAPER = {"speedup_vs_transformer": "paper: speed", "peak_memory_ratio_vs_transformer": "paper: memory"}


class Table(NamedTuple):
    """head: names of columns; rows: a text for each of them."""

    title: str
    about: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]


class Group(NamedTuple):
    """Rows of one record that differ in mechanism, padding and n only, measured on the same machine."""

    record: BenchRecord
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
        same = [row for row in self.rows if row.n == n and row.mechanism == self.record.choices.get("reference")]
        return min((row for row in same if row.ms), key=lambda row: row.pad != "fixed", default=None)


def groups(records: Iterable[BenchRecord]) -> list[Group]:
    found: dict[tuple, list[Row]] = defaultdict(list)
    kept = list(records)
    for i, record in enumerate(kept):
        for row in record.rows:
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


def tables(records: Iterable[BenchRecord]) -> list[Table]:
    """For each group a table over lengths where there are several, and one of every number."""
    found = []
    for group in groups(records):
        if len(group.lengths) > 1:
            found.append(_over_lengths(group))
        if len(group.lengths) == 1 or len(group.rows) <= DETAILED:
            found.append(_details(group))
    return found


def _about(record: BenchRecord) -> str:
    m = record.machine
    allocator = " ".join(f"{key}={value}" for key, value in m.allocator.items()) or "default"
    rates = ", ".join(f"{rate / 1e12:.3g} TFLOP/s {dtype}" for dtype, rate in m.matmul.items())
    return (
        f"{m.hardware}, {m.threads} threads, torch {m.torch}; copy {m.copy / 1e9:.4g} GB/s, matmul {rates}; "
        f"allocator {allocator}; load {m.load}; commit {record.git or 'unknown'}"
    )


def _over_lengths(group: Group) -> Table:
    rows = []
    for name, mine in group.over_n().items():
        cells = {row.n: _number(row.ms) for row in mine}
        claimed = next(row.claimed for row in group.rows if label(row) == name)
        grown = [growth([(row.n, value(row)) for row in mine]) for value in (lambda r: r.ms, lambda r: r.peak_bytes)]
        rows.append(
            (
                name,
                *(cells.get(n, "-") for n in group.lengths),
                f"{max(map(_spread, mine)):.0%}" if mine else "-",
                _number(mine[-1].peak_bytes / 2**20) if mine and mine[-1].peak_bytes is not None else "-",
                *("-" if g is None else f"{g:.2f}" for g in grown),
                f"{claimed:g}",
            )
        )
    head = ("mechanism", *map("{:,}".format, group.lengths), "spread", "MB", "growth", "MB growth", "claimed")
    return Table(f"{group.title}: ms over n", _about(group.record), head, rows)


def _details(group: Group) -> Table:
    beside = _paper() if (group.rows[0].what, group.rows[0].mode) == ("step", "training") else {}
    head = ("mechanism", "n", "ms", "spread", "samples", "MB", "GB/s", "TFLOP/s", "floor ms", "x floor")
    head += ("speed", "memory", *PAPER.values(), "status")
    rows = []
    for row in sorted(group.rows, key=lambda row: row.n):
        cells = [label(row), f"{row.n:,}"] + ["-"] * (len(head) - 3) + ["" if row.status == "ok" else row.status]
        if row.ms is not None:
            seconds, base = row.ms / 1000, group.reference(row.n)
            cells[2:6] = _number(row.ms), f"{_spread(row):.0%}", str(len(row.samples)), _number(row.peak_bytes / 2**20)
            if row.floor_bytes:
                cells[6] = _number(row.floor_bytes / seconds / 1e9)
                cells[8:10] = _number(row.floor_ms), _number(row.ms / row.floor_ms)
            if row.flops:
                cells[7] = _number(row.flops / seconds / 1e12)
            if base:
                cells[10:12] = _number(base.ms / row.ms), f"{row.peak_bytes / max(base.peak_bytes, 1):.2f}"
        for at, metric in enumerate(PAPER, 12):
            cells[at] = beside.get((row.mechanism, metric), "-")
        rows.append(tuple(cells))
    shown = [i for i in range(len(head)) if i < 3 or any(row[i] not in ("-", "") for row in rows)]
    about = _about(group.record)
    if group.record.choices.get("reference"):
        about += f"; speed and memory relative to {group.record.choices['reference']}"
    pick = lambda cells: tuple(cells[i] for i in shown)
    return Table(group.title, about, pick(head), [pick(row) for row in rows])


def _paper() -> dict[tuple[str, str], str]:
    """What CURformer's Table 2 prints, by word of conf/attn and metric."""
    return {
        (word, row.metric): row.value for row in published.read() if row.metric in PAPER for word in row.attn.split()
    }


def _spread(row: Row) -> float:
    return (max(row.samples) - min(row.samples)) / row.ms


def growth(points: Sequence[tuple[int, float | None]]) -> float | None:
    """log(value ratio) / log(n ratio) over the last two doublings of (n, value); None where there are fewer."""
    done = [(n, value) for n, value in points if value]
    if len(done) < 3:
        return None
    (a, x), (b, y) = done[-3], done[-1]
    return math.log(y / x) / math.log(b / a)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def terminal(table: Table) -> Lines:
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for i, name in enumerate(table.head):
        grid.add_column(name, justify="right" if i > 0 and name != "status" else "left", overflow="fold")
    for row in table.rows:
        grid.add_row(*row)
    return Lines(Text(table.title, "bold underline"), table.about, grid)


def markdown(tables: Iterable[Table], pictures: Iterable[Path] = ()) -> str:
    """The same for GitHub, below one heading, and the pictures, which lie in a folder beside the text."""
    out = ["# Efficiency", LEGEND]
    for table in tables:
        lines = [table.head, ("---",) * len(table.head), *table.rows]
        text = ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in lines]
        out += [f"## {table.title}", f"{table.about}.", "\n".join(text)]
    out += [f"![{path.stem}]({path.parent.name}/{path.name})" for path in pictures]
    return "\n\n".join(out) + "\n"


def pictures(records: Sequence[BenchRecord], folder: Path, trained: Sequence[RunRecord] = ()) -> list[Path]:
    """PNG files: time and memory of each group over n, or as bars where there is one n; growth; speed against accuracy
    of each study of ``trained``. Without matplotlib there are none, and a line says so."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no pictures: they need matplotlib, pip install 'lra-suite[plot]'", file=sys.stderr)
        return []
    folder.mkdir(parents=True, exist_ok=True)
    made = []

    def save(figure: Figure, name: str) -> None:
        made.append(folder / f"{_slug(name)}.png")
        figure.savefig(made[-1], dpi=120, bbox_inches="tight")

    for group in groups(records):
        if not any(group.over_n().values()):
            continue
        name = f"{group.title} {group.record.fingerprint[:6]}"
        if len(group.lengths) > 1:
            save(_lines(Figure(figsize=(12, 4.8), layout="constrained"), group), name)
        else:
            height = 1.5 + 0.22 * len(group.over_n())
            save(_bars(Figure(figsize=(11, height), layout="constrained"), group), name)
        if len(group.lengths) > 2:
            height = 1.5 + 0.22 * len(group.over_n())
            save(_exponents(Figure(figsize=(8, height), layout="constrained"), group), f"{name} growth")
    for study in sorted({r.study for r in trained}):
        figure = Figure(layout="constrained")
        if _bubbles(figure, records, [r for r in trained if r.study == study and r.status == "done"]):
            figure.suptitle(study)
            save(figure, f"speed and accuracy {study}")
    return made


def _lines(figure, group: Group):
    """Time and memory over n, both axes logarithmic, as in CURformer's Figure 4."""
    left, right = figure.subplots(1, 2)
    found = {name: mine for name, mine in group.over_n().items() if mine}
    by_time = sorted(found, key=lambda name: (-found[name][-1].n, found[name][-1].ms))
    coloured = by_time if len(by_time) <= COLOURED + 1 else by_time[:COLOURED]
    for name in by_time[::-1]:
        n = [row.n for row in found[name]]
        style = {"color": "0.85", "lw": 0.8, "zorder": 1}
        if name in coloured:
            at = coloured.index(name)
            style = {"color": f"C{at % 10}", "ls": ("-", "--")[at // 10], "marker": "os^vD<>pP*"[at % 10], "ms": 4}
        left.plot(n, [row.ms for row in found[name]], **style, label=name if name in coloured else None)
        right.plot(n, [max(row.peak_bytes or 0, 1) / 2**20 for row in found[name]], **style)
    if rest := len(found) - len(coloured):
        left.plot([], [], color="0.85", label=f"{rest} slower ones")
    for axes, unit in ((left, "ms"), (right, "MB")):
        axes.set(xscale="log", yscale="log", xlabel="n", ylabel=unit)
        axes.set_xticks(group.lengths, [f"{n:,}" for n in group.lengths])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    handles, names = left.get_legend_handles_labels()
    order = sorted(range(len(names)), key=lambda i: by_time.index(names[i]) if names[i] in found else len(found))
    figure.legend([handles[i] for i in order], [names[i] for i in order], loc="outside right upper", fontsize=8)
    figure.suptitle(f"{group.title}\n{group.record.machine.hardware}", fontsize=10)
    return figure


def _bars(figure, group: Group):
    found = sorted(((mine[0], name) for name, mine in group.over_n().items() if mine), key=lambda pair: -pair[0].ms)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, unit, value in zip(panels, ("ms", "MB"), (lambda r: r.ms, lambda r: r.peak_bytes / 2**20), strict=True):
        bars = axes.barh([name for _, name in found], [value(row) for row, _ in found], color="C0")
        axes.bar_label(bars, [_number(value(row)) for row, _ in found], fontsize=8, padding=2)
        axes.set(xlabel=unit)
        axes.tick_params(labelsize=8)
        axes.margins(x=0.12, y=0.01)
    figure.suptitle(f"{group.title}, n {group.lengths[0]:,}\n{group.record.machine.hardware}", fontsize=10)
    return figure


def _exponents(figure, group: Group):
    found = {name: growth([(row.n, row.ms) for row in mine]) for name, mine in group.over_n().items()}
    found = dict(sorted(((k, v) for k, v in found.items() if v is not None), key=lambda pair: -pair[1]))
    claimed = {label(row): row.claimed for row in group.rows}
    axes = figure.subplots()
    names = list(found)
    axes.scatter([claimed[name] for name in names], names, marker="|", color="0.5", s=90, label="claimed")
    axes.scatter(list(found.values()), names, color="C0", s=22, label="measured")
    axes.set(xlabel=f"exponent of n in the time, up to n = {group.lengths[-1]:,}")
    axes.grid(axis="x", alpha=0.3)
    axes.tick_params(labelsize=8)
    axes.margins(y=0.02)
    axes.legend(fontsize=8)
    figure.suptitle(f"{group.title}\n{group.record.machine.hardware}", fontsize=10)
    return figure


def _bubbles(figure, records: Sequence[BenchRecord], trained: Sequence[RunRecord]) -> bool:
    """Test score over training speed for each task, areas as memory; whether there was anything to draw."""
    scores: dict[str, dict[str, list[RunRecord]]] = defaultdict(lambda: defaultdict(list))
    for r in trained:
        scores[r.task][r.label].append(r)
    panels = []
    for task, mine in scores.items():
        points, source = _costs(records, mine)
        if points:
            panels.append((task, mine, points, source))
    if not panels:
        return False
    figure.set_size_inches(6 * len(panels), 5)
    for axes, (task, mine, points, source) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
    ):
        largest = max(size for _, size in points.values())
        for i, (name, (speed, size)) in enumerate(points.items()):
            score = mean(r.test for r in mine[name])
            axes.scatter(speed, score, s=30 + 900 * size / largest, color=f"C{i % 10}", alpha=0.5, linewidths=0)
            axes.annotate(name, (speed, score), fontsize=8, ha="center", va="center")
        axes.set(xscale="log", xlabel=f"training steps per second ({source})", ylabel=f"test {mine[name][0].metric}, %")
        axes.set_title(f"{task}; areas: peak memory, the largest {_number(largest / 2**20)} MB", fontsize=9)
        axes.grid(alpha=0.3)
        axes.margins(0.2)
    return True


def _costs(records: Sequence[BenchRecord], mine: dict[str, list[RunRecord]]) -> tuple[dict[str, tuple], str]:
    """Steps per second and bytes of each label, all from the one group of training steps that knows most of them, or
    from the training runs themselves where no benchmark knows two; and which."""
    best: dict[str, tuple] = {}
    source = "in training"
    for group in groups(records):
        if group.rows[0].what == "step" and group.rows[0].mode == "training":
            for n, pad in {(row.n, row.pad) for row in group.rows}:
                same = [r for r in group.rows if (r.n, r.pad) == (n, pad) and r.ms and r.mechanism in mine]
                if len(same) > max(len(best), 1):
                    best = {row.mechanism: (1000 / row.ms, row.peak_bytes) for row in same}
                    source = f"{group.title}, n {n:,}"
    if not best:
        for name, runs in mine.items():
            if times := [r.step_ms for r in runs if r.step_ms]:
                best[name] = 1000 / mean(times), max(r.peak_bytes or 1 for r in runs)
    return best, source


def _slug(text: str) -> str:
    return "-".join("".join(c if c.isalnum() or c in "._" else " " for c in text).split()).lower()
