"""The Arena's table: every mechanism at the papers' budget, with its gain over no attention and published values."""

from collections import Counter, defaultdict
from statistics import median

from ..evaluate import compare
from ..results import published
from ..results.published import TITLES
from ..results.summary import Row
from ..results.table import Cell, Table, frame
from ..runs.reader import CONTROL
from .arena_compare import gap_section, pair_table, precision_table
from .arena_entries import ArenaEntry, entries, gain_cell, spread_text

# Published values that were measured with the same two-layer encoder come first.
PREFERRED = ("CURformer T4", "PSF T3 (Xiong et al. 2021)", "SOFT T12", "CURformer T1")
ABOUT = (
    "{seeds} seeds at the papers' budget (protocol=paper budget=paper). test: accuracy on the standard test set, mean "
    "± sample standard deviation over seeds. gain: difference from attn=mean, the control without attention, with a "
    "95 % Welch interval over seeds. fresh test: accuracy on {fresh} examples of another random seed, the same for all "
    "mechanisms, ± standard error over seeds and examples. published: the value that a paper prints, if possible with "
    "the same two-layer encoder. ms: median time per training step on the hardware of most seeds, which runs shared. "
    "{hardware}"
)


def tables(studies: dict[str, list[Row]]) -> list[Table]:
    """Make the tables of the Arena: results of each task, then which mechanisms differ, then 16 bits against 32."""
    by_task = entries(studies)
    results = [task_table(task, lines) for task, lines in by_task.items()]
    pairs = [pair_table(task, lines) for task, lines in by_task.items()]
    further = [table for table in (*pairs, precision_table(studies)) if table]
    return results + further


def readme(studies: dict[str, list[Row]]) -> str:
    """Render the tables of results for the README; empty without runs at the papers' budget."""
    parts = []
    for task, lines in entries(studies).items():
        table = task_table(task, lines)
        parts += [f"**{table.title}**", table.markdown(), table.about]
    return "\n\n".join(parts)


def section(studies: dict[str, list[Row]]) -> str:
    """Render the Arena's chapter of docs/results.md; empty without runs at the papers' budget."""
    by_task = entries(studies)
    if not by_task:
        return ""
    parts = ["## Long Range Arena"]
    parts += [table.section() for table in tables(studies)]
    if "listops" in by_task:
        lines = {entry.name: entry for entry in by_task["listops"]}
        parts.append(gap_section({name: (entry.row, entry.fresh) for name, entry in lines.items()}))
    return "\n\n".join(part for part in parts if part)


def task_table(task: str, lines: list[ArenaEntry]) -> Table:
    """Make the table of results of one task.

    Args:
        task: name of the task.
        lines: entries of the task.
    """
    machines = {machine(entry.row) for entry in lines}
    seeds = sorted({entry.row.n for entry in lines})
    sizes = sorted({result.examples for entry in lines for result in entry.fresh.values()})
    rows = []
    for entry in lines:
        row = entry.row
        value, source = published_value(entry)
        cells = [
            entry.name,
            Cell(text=spread_text(row), value=row.test, n=row.n),
            Cell(text=f"{row.n} (+{row.num_failed})" if row.num_failed else str(row.n), value=row.n),
            gain_cell(entry),
            fresh_cell(entry),
            Cell(text=value.text if value else "-", value=value.number if value else None),
            source,
            Cell.of(step_time(row), "{:.0f}".format),
            Cell.of(parameters(row), "{:,.0f}".format),
        ]
        if len(machines) > 1:
            cells.append(machine(row))
        rows.append(cells)
    head = ["mechanism", "test", "n", f"gain over {CONTROL}", "fresh test", "published", "source", "ms", "parameters"]
    if len(machines) > 1:
        head.append("hardware")
    seed_range = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    about = ABOUT.format(
        seeds=seed_range,
        fresh=" or ".join(f"{size:,}" for size in sizes) or "fresh",
        hardware=f"Hardware: {machines.pop()}." if len(machines) == 1 else "Compare times of the same hardware only.",
    )
    return Table(
        name=f"arena-{task}",
        title=TITLES[task],
        about=about,
        cells=frame(head, rows, [(entry.row.study, entry.row.label, "") for entry in lines]),
        words=("mechanism", "source", "hardware"),
    )


def fresh_cell(entry: ArenaEntry) -> Cell:
    """Make the cell of the fresh test, with the number of seeds if not all of them are scored."""
    if not entry.fresh:
        return Cell(text="-")
    outcomes = entry.outcomes()
    score = 100 * float(outcomes.mean())
    error = compare.standard_error(outcomes)
    text = f"{score:.2f} ± {error:.2f}"
    if len(outcomes) < entry.row.n:
        text += f" (n = {len(outcomes)})"
    return Cell(text=text, value=score, std=error, n=len(outcomes))


def published_value(entry: ArenaEntry) -> tuple[published.PrintedValue | None, str]:
    """Choose the published value of a mechanism, and name its source; none for the longer training."""
    if entry.name != entry.row.label:
        return None, ""
    values = [value for value in entry.row.published if value.number is not None]
    if not values:
        return None, ""
    rank = {source: i for i, source in enumerate(PREFERRED)}
    best = min(values, key=lambda value: rank.get(value.source, len(rank)))
    return best, best.source


def step_time(row: Row) -> float | None:
    """Median time per training step in milliseconds, of the runs on the device that most of them had."""
    times = defaultdict(list)
    for run_record in row.done:
        if run_record.step_ms is not None:
            times[run_record.device].append(run_record.step_ms)
    if not times:
        return None
    return median(max(times.values(), key=len))


def machine(row: Row) -> str:
    """Name the hardware of most of the runs: AMD EPYC, x86_64 CPU, 1 thread."""
    names = set()
    devices = Counter(run_record.device for run_record in row.done)
    most_common = devices.most_common(1)[0][1]
    for run_record in row.done:
        if devices[run_record.device] < most_common:
            continue
        is_cpu = " CPU, " in run_record.device
        prefix = f"{run_record.processor}, " if is_cpu and run_record.processor else ""
        names.add(prefix + run_record.device.replace(" 1 threads", " 1 thread"))
    # A processor that old records do not name is no other machine.
    specific = set()
    for name in names:
        longer_names = [other for other in names if other != name and other.endswith(name)]
        if not longer_names:
            specific.add(name)
    return " / ".join(sorted(specific))


def parameters(row: Row) -> float:
    """Number of parameters of the model."""
    return float(row.done[0].params)
