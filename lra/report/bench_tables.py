"""Tables of the cost of mechanisms, from records of ``lra.bench``."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..console import plural
from ..names import stem
from ..results import paper_values
from ..results.bench_record import BenchRecord, BenchRow
from ..results.table import Cell, Table, frame
from .bench_groups import MEBIBYTE, Group, groups, growth, label, three_digits

# A group of several lengths with more rows gets the table over lengths only.
MAX_DETAILED_ROWS = 60
LEGEND = (
    "ms: median of the samples; spread: (largest - smallest) / median. MB: units of 2^20 bytes, of the peak memory "
    "allocated during a call, without parameters, optimiser state and inputs, which all contestants hold at the same "
    "time. GB/s, TFLOP/s: bytes that any attention has to move and FLOPs of its matrix products, per time; roofline: "
    "their time at the machine's measured copy bandwidth and matmul rate. growth, MB growth: exponents of n in the "
    "time and in the memory, over the last three lengths; claimed: exponent of the time that the authors claim or that "
    "their formulas give, 1 if unknown. parameters: of the layer, projections included; of a whole block (mega, luna, "
    "dba) with its feed-forward layer; some mechanisms (linformer, synthesizer, long_conv, psf) have more for a larger "
    "n. state: real numbers that the layer carries from one token to the next in one direction, over all heads; - "
    "without a recurrence."
)
PAPER = {"speedup_vs_transformer": "paper: speed", "peak_memory_ratio_vs_transformer": "paper: memory"}
NUMBERS = ("ms", "spread", "samples", "MB", "GB/s", "TFLOP/s", "roofline ms", "x roofline", "speed", "memory")
NONE = Cell.of(None)
# Columns of sizes of a layer.
SIZES = ("parameters", "state")


def tables(records: Iterable[BenchRecord]) -> list[Table]:
    """Make the tables of each group: over lengths, if it has several, and of every number.

    A group with several lengths and many rows has no table of every number. Rounding errors have a single table.

    Args:
        records: records of benchmarks.
    """
    all_tables = []
    for group in groups(records):
        if group.rows[0].what == "error":
            all_tables.append(_errors(group))
            continue
        num_lengths = len(group.lengths)
        if num_lengths > 1:
            all_tables.append(_over_lengths(group))
        if num_lengths == 1 or len(group.rows) <= MAX_DETAILED_ROWS:
            all_tables.append(_details(group))
    # The number makes equal titles of several records distinct.
    return [replace(table, name=stem(f"efficiency-{i}-{table.title}")) for i, table in enumerate(all_tables)]


def markdown(tables: Iterable[Table]) -> str:
    """Format the tables as Markdown, below one heading."""
    sections = [table.section(2) for table in tables]
    text = "\n\n".join(["# Efficiency", LEGEND, *sections])
    return f"{text}\n"


def _about(source: BenchRecord) -> str:
    """Describe the machine and the code of a record."""
    machine = source.machine
    options = [f"{key}={value}" for key, value in machine.allocator.items()] or ["default"]
    matmul_rates = []
    for dtype, rate in machine.matmul.items():
        teraflops = rate / 1e12
        matmul_rates.append(f"{teraflops:.3g} TFLOP/s {dtype}")
    copy_rate = machine.copy / 1e9
    parts = [
        f"{machine.hardware}, {plural(machine.threads, 'thread')}, torch {machine.torch}",
        f"copy {copy_rate:.4g} GB/s, matmul {', '.join(matmul_rates)}",
        f"allocator {' '.join(options)}",
        f"load {machine.load}",
        f"commit {source.git or 'unknown'}",
    ]
    if source.choices.get("clock") == "cpu":
        parts.append("ms of CPU time")
    return "; ".join(parts)


def _over_lengths(group: Group) -> Table:
    """Make a table of milliseconds over n, with memory, growth and sizes of the layer."""
    claimed = {label(row): row.claimed for row in group.rows}
    lines = []
    for name, rows in group.over_n().items():
        line: dict[str, Cell | str] = {"mechanism": name}
        for n in group.lengths:
            line[f"{n:,}"] = NONE
        for row in rows:
            line[f"{row.n:,}"] = Cell.of(row.ms, three_digits)
        line |= _summary(rows, group.timed_lengths)
        line["claimed"] = Cell.of(claimed[name], "{:g}".format)
        # Sizes of the layer at the largest n; linformer, among others, grows with n.
        for field in SIZES:
            size = getattr(rows[-1], field) if rows else None
            line[field] = Cell.of(size, "{:,}".format)
        # The reasons for missing times.
        problems = {row.status for row in group.rows if label(row) == name} - {"ok"}
        line["status"] = "; ".join(sorted(problems))
        lines.append(line)

    # Steps, and records of earlier versions, have no sizes; without a failure there is no status.
    filled = [field for field in (*SIZES, "status") if _has_content(lines, field)]
    for field in {*SIZES, "status"} - set(filled):
        for line in lines:
            del line[field]
    at_largest_n = ["MB", *(field for field in SIZES if field in filled)]
    about = (
        f"{_about(group.source)}; spread: the largest over n; {', '.join(at_largest_n)}: at the largest n with a time"
    )
    return _table(f"{group.title}: ms over n", about, lines)


def _summary(rows: list[BenchRow], lengths: list[int]) -> dict[str, Cell]:
    """Summarise the rows of a contestant over n: spread, memory, and the measured exponents of n."""
    times = {row.n: row.ms for row in rows}
    sizes = {row.n: row.peak_bytes for row in rows}
    # Spread: the largest over all lengths; memory: at the largest length.
    largest_spread = max(map(_spread, rows), default=None)
    mebibytes = rows[-1].peak_bytes / MEBIBYTE if rows else None
    return {
        "spread": Cell.of(largest_spread, "{:.0%}".format),
        "MB": Cell.of(mebibytes, three_digits),
        "growth": Cell.of(growth(times, lengths), "{:.2f}".format),
        "MB growth": Cell.of(growth(sizes, lengths), "{:.2f}".format),
    }


def _errors(group: Group) -> Table:
    """Make a table of rounding errors, with a row for each contestant and columns for each length."""
    rows_of: dict[str, dict[int, BenchRow]] = defaultdict(dict)
    for row in group.rows:
        rows_of[label(row)][row.n] = row

    # Inference has no gradients.
    parts = ["output"]
    if group.rows[0].mode == "training":
        parts.append("gradients")
    no_errors = [None] * len(parts)

    lines = []
    for name, rows in rows_of.items():
        line: dict[str, Cell | str] = {"mechanism": name}
        for n in group.lengths:
            # A contestant may have no row of this length, or a row that failed.
            errors: Sequence[float | None] = no_errors
            if n in rows:
                errors = rows[n].errors or no_errors
            for part, error in zip(parts, errors, strict=True):
                line[f"{part}, n = {n:,}"] = Cell.of(error, "{:.1e}".format)
        problems = {row.status for row in rows.values()} - {"ok"}
        line["status"] = "; ".join(sorted(problems))
        lines.append(line)
    machine = _about(group.source)
    about = f"||x - y|| / ||y|| in the 2-norm, y in float64 with the same weights and inputs; {machine}"
    return _table(f"{group.title}: rounding error", about, lines)


def _details(group: Group) -> Table:
    """Make a table of every number; columns without any number, except ms, are left out."""
    # The papers print the speed and memory of training steps, relative to exact attention without a fused kernel.
    first = group.rows[0]
    has_paper_baseline = group.source.choices.get("reference") in ("naive", "softmax")
    has_paper_values = has_paper_baseline and first.what == "step" and first.mode == "training"
    published = _paper_values() if has_paper_values else {}
    lines = []
    for row in sorted(group.rows, key=lambda row: row.n):
        # All columns in their order, then the values of this row.
        line: dict[str, Cell | str] = {"mechanism": label(row), "n": Cell.of(row.n, "{:,}".format)}
        line |= dict.fromkeys(NUMBERS, NONE)
        if row.ms is not None:
            reference_row = group.reference(row.n)
            line |= _measurements(row, reference_row)
        if has_paper_values:
            for metric, name in PAPER.items():
                value = published.get((row.mechanism, metric))
                line[name] = Cell.of(value, "{:g}".format)
        line["status"] = "" if row.status == "ok" else row.status
        lines.append(line)

    # Leave out columns without any value, except ms.
    for name in list(lines[0]):
        if name != "ms" and not _has_content(lines, name):
            for line in lines:
                del line[name]
    about = _about(group.source)
    reference = group.source.choices.get("reference")
    # The column "speed" exists only if the reference was timed.
    if "speed" in lines[0]:
        about += f"; speed and memory relative to {reference}"
    return _table(group.title, about, lines)


def _has_content(lines: list[dict[str, Cell | str]], name: str) -> bool:
    """Whether a column has a number or a text."""
    cells = [line[name] for line in lines]
    return any(cell not in (NONE, "") for cell in cells)


def _paper_values() -> dict[tuple[str, str], float | None]:
    """Return the published speed-ups and memory ratios by (mechanism, metric)."""
    values = {}
    printed = [value for value in paper_values.read() if value.metric in PAPER]
    for value in printed:
        for mechanism in value.attn.split():
            values[mechanism, value.metric] = value.number
    return values


def _measurements(row: BenchRow, reference: BenchRow | None) -> dict[str, Cell]:
    """Make the cells of a row with a time."""
    cells = {
        "ms": Cell.of(row.ms, three_digits),
        "spread": Cell.of(_spread(row), "{:.0%}".format),
        "samples": Cell.of(len(row.samples), str),
        "MB": Cell.of(row.peak_bytes / MEBIBYTE, three_digits),
    }
    # Bytes and FLOPs per millisecond, as GB/s and TFLOP/s.
    if row.roofline_bytes:
        gigabytes = row.roofline_bytes / row.ms / 1e6
        slowdown = row.ms / row.roofline_ms
        cells["GB/s"] = Cell.of(gigabytes, three_digits)
        cells["roofline ms"] = Cell.of(row.roofline_ms, three_digits)
        cells["x roofline"] = Cell.of(slowdown, three_digits)
    if row.flops:
        teraflops = row.flops / row.ms / 1e9
        cells["TFLOP/s"] = Cell.of(teraflops, three_digits)
    # Relative to the reference of the same length.
    if reference:
        speed = reference.ms / row.ms
        memory = row.peak_bytes / max(reference.peak_bytes, 1)
        cells["speed"] = Cell.of(speed, three_digits)
        cells["memory"] = Cell.of(memory, "{:.2f}".format)
    return cells


def _spread(row: BenchRow) -> float:
    difference = max(row.samples) - min(row.samples)
    return difference / row.ms


def _table(title: str, about: str, lines: list[dict[str, Cell | str]]) -> Table:
    head = list(lines[0])
    cells = frame(head, [list(line.values()) for line in lines])
    # ``tables`` sets the name.
    return Table(
        name="",
        title=title,
        about=f"{about}.",
        cells=cells,
        words=("mechanism", "status"),
    )
