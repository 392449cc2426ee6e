"""The Arena's table: every mechanism at the papers' budget, with its gain over no attention and published values."""

from collections import Counter, defaultdict
from functools import partial

from ..console import plural
from ..results.figures import Picture
from ..results.paper_values import TITLES, PrintedValue, training_of
from ..results.summary import Row, Studies, common_device, step_time
from ..results.table import Cell, Table, frame
from ..runs.reader import CONTROL
from ..runs.record import on_cpu
from .arena_compare import gap_section, pair_table, precision, precision_table
from .arena_entries import ArenaEntry, entries, fresh_cell, gain_cell, gains_are_fresh, score_text, seeds_text
from .plots import seed_points
from .plots.seed_points import SeedScores

# Preferred sources, best first. Any value for the two-layer encoder comes before any other value.
PREFERRED = ("CURformer T4", "PSF T3 (Xiong et al. 2021)", "SOFT T12", "CURformer T1")
# Shown once per page.
LEGEND = """\
* **(longer training)**: the training that CURformer's authors released for ListOps, 20,000 steps of 128 sequences at a
  learning rate of 0.0007 instead of 5,000 of 32 at 0.0001 (`experiment=curformer_listops`).
* **test**: accuracy on the standard test set at the best validation checkpoint, mean ± sample standard deviation over n
  seeds. Text has no validation set in the papers' protocol: the test set selects the checkpoint and favours the score.
* **fresh test**: accuracy on examples that were generated from another random seed, the same for all mechanisms, ±
  standard error over seeds and examples, over examples alone for one seed. A table is sorted by it if
  all lines have it on the same examples.
* **gain**: difference from `attn=mean`, the control without attention, at the same learning rate, on the fresh test,
  with a 95 % interval over seeds and examples (two-way random effects). If a mechanism with a control, or the control,
  lacks the fresh test, all gains of the task are on the standard test set, with Welch's interval over seeds. The
  intervals are not corrected for the number of lines. They assume normally distributed seeds: if some seeds learn and
  others do not, they cover less than 95 % with few seeds. A gain without an interval has one seed on a side or, on the
  standard test set, no score varies. The longer training has no control.
* **published**: the value that a paper prints for this two-layer encoder; without one, the range of the values for
  other encoders, which say little about this one.
* **source**: paper and table (T4: Table 4) of that value; in parentheses the paper from which the table quotes it;
  after a semicolon the encoder, if it is another one.
* **ms**: median time per training step on the named hardware. Up to 16 runs shared it, a different number for each
  seed, so these times do not rank mechanisms; `lra bench` measures their speed.

The papers' budget is `protocol=paper budget=paper`."""

README_LEGEND = """\
* **test**: accuracy on the standard test set at the best validation checkpoint, mean ± sample standard deviation over n
  seeds. Text has no validation set in the papers' protocol: the test set selects the checkpoint and favours the score.
* **fresh test**: accuracy on newly generated examples, the same ones for all mechanisms, ± standard error over seeds
  and examples (over examples only, if there is one seed).
* **gain**: difference from the control `attn=mean` (every query gets the mean of the values), on the fresh test if all
  mechanisms have one. In parentheses: 95 % interval over seeds and examples, not corrected for multiple comparisons.
* **published**: the value that a paper reports for this encoder or, if there is none, the values for other encoders.
  The source is a paper and its table (T4: Table 4). CURformer's ListOps scores were probably made with the longer
  training.
* **(longer training)**: the ListOps training that CURformer's authors released: 20,000 steps with 128 sequences each
  and a learning rate of 0.0007, not 5,000 with 32 and 0.0001. It has no control, so it has no gain.
* **ms**: time per training step. Several runs shared a device, so do not rank mechanisms by it: use `lra bench`.

[docs/results.md](docs/results.md#long-range-arena) has the exact definitions."""


def tables(studies: Studies) -> list[Table]:
    """Make the tables of the Arena: results of each task, then which mechanisms differ, then 16 bits against 32."""
    results = []
    comparisons = []
    for task, lines in entries(studies).items():
        results.append(task_table(task, lines, is_fresh=gains_are_fresh(lines)))
        comparisons.append(pair_table(task, lines))
    comparisons.append(precision_table(studies))
    return results + [table for table in comparisons if table]


def readme(studies: Studies) -> str:
    """Render the tables of results for the README; empty without runs at the papers' budget.

    Runs whose label names another learning rate than the papers' are left to docs/results.md.
    """
    parts = []
    for task, lines in entries(studies).items():
        at_papers_rate = [entry for entry in lines if "optim.lr=" not in entry.row.label]
        shown = at_papers_rate if at_papers_rate else lines
        table = task_table(task, shown, is_fresh=gains_are_fresh(lines))
        about = table.about
        if len(shown) < len(lines):
            omitted_rows = plural(len(lines) - len(shown), "more row")
            # The heading is the title: ### Path-X.
            anchor = TITLES[task].lower()
            about += f" For {omitted_rows} at other learning rates, see [docs/results.md](docs/results.md#{anchor})."
        parts += [f"**{table.title}**", table.markdown(), about]
    if parts:
        parts.append(README_LEGEND)
    return "\n\n".join(parts)


def pictures(studies: Studies) -> list[Picture]:
    """Make a picture of every seed for each task whose lines are all scored on the same fresh examples."""
    task_pictures = []
    for task, lines in entries(studies).items():
        digests = {result.data for entry in lines for result in entry.fresh.values()}
        if len(digests) != 1 or not all(entry.fresh for entry in lines):
            continue
        points = []
        for entry in lines:
            scores = [result.fresh_test for result in entry.fresh.values()]
            points.append(SeedScores(entry.name, scores, entry.row.num_failed, entry.row.chance))
        caption = (
            f"accuracy of every seed on {_fresh_sizes(lines)} fresh examples of {TITLES[task]}, best mean first; "
            "dotted: the best constant answer on the standard test set"
        )
        if any("optim.lr=" in entry.row.label for entry in lines):
            caption += "; optim.lr=: another learning rate than the papers'"
        draw = partial(seed_points.draw_figure, unit="accuracy on fresh examples")
        task_pictures.append(Picture(f"arena/{task}", caption, draw, {TITLES[task]: points}))
    return task_pictures


def section(studies: Studies) -> str:
    """Render the Arena's chapter of docs/results.md; empty without runs at the papers' budget."""
    by_task = entries(studies)
    if not by_task:
        return ""
    parts = ["## Long Range Arena", LEGEND]
    parts += [table.section() for table in tables(studies)]
    if "listops" in by_task:
        runs = {entry.name: (entry.row, entry.fresh) for entry in by_task["listops"]}
        parts.append(gap_section(runs))
    return "\n\n".join(part for part in parts if part)


def task_table(task: str, lines: list[ArenaEntry], *, is_fresh: bool) -> Table:
    """Make the table of results of one task.

    Args:
        task: name of the task.
        lines: entries of the task.
        is_fresh: whether the gains are on the fresh examples, see ``gains_are_fresh`` of all lines of the task.
    """
    # Show the times on the device with the most runs of the table, or on another one if a mechanism has no run there.
    devices = Counter(run_record.device for entry in lines for run_record in entry.row.done)
    head = ["mechanism", "test", "n", "fresh test", f"gain over {CONTROL}", "published", "source", "parameters", "ms"]
    rows = []
    machines = []
    num_elsewhere = 0
    for entry in lines:
        device = common_device(entry.row.done, devices)
        gain = gain_cell(entry, is_fresh=is_fresh)
        rows.append([*_line(entry, gain), Cell.of(step_time(entry.row.done, device), "{:.0f}".format)])
        machines.append(machine(entry.row, device))
        num_elsewhere += sum(run_record.device != device for run_record in entry.row.done)

    # A sentence names the machine of most lines and the exceptions.
    by_machine = defaultdict(list)
    for entry, name in zip(lines, machines, strict=True):
        by_machine[name].append(entry.name)
    most_frequent = max(by_machine, key=lambda name: len(by_machine[name]))
    hardware = f"Times were measured on {most_frequent}"
    for name, names in by_machine.items():
        if name != most_frequent:
            hardware += f"; on {name} for {', '.join(names)}"
    if num_elsewhere:
        hardware += f"; {num_elsewhere} of {plural(devices.total(), 'run')} ended on another device and are not in ms"

    # What the runs have in common, and data that are not the official file.
    about = f"{_seed_range(lines)} at the papers' budget"
    sizes = _fresh_sizes(lines)
    if sizes:
        about += f"; the fresh test has {sizes} examples"
    constants = {round(run_record.constant_baseline, 2) for entry in lines for run_record in entry.row.done}
    if len(constants) == 1:
        about += f". The best constant answer scores {constants.pop():.2f} on the standard test set"
    about += f". {hardware}."
    files = {run_record.data for entry in lines for run_record in entry.row.done if run_record.data}
    if files:
        about += f" Data: not the official file ({', '.join(sorted(files))}), so published values are left out."
    keys = [(entry.row.study, entry.row.label, "") for entry in lines]
    return Table(
        name=f"arena-{task}",
        title=TITLES[task],
        about=about,
        cells=frame(head, rows, keys),
        words=("mechanism", "source"),
    )


def _line(entry: ArenaEntry, gain: Cell) -> list[Cell | str]:
    """Make the cells of an entry with its gain, without its time."""
    row = entry.row
    published_cell, source = published_cells(entry)
    return [
        entry.name,
        Cell(text=score_text(row), value=row.test, n=row.n),
        Cell(text=seeds_text(row.n, row.num_failed), value=row.n),
        fresh_cell(entry.fresh, row.n),
        gain,
        published_cell,
        source,
        Cell.of(row.done[0].params, "{:,}".format),
    ]


def _seed_range(lines: list[ArenaEntry]) -> str:
    """Describe the numbers of seeds: "3 to 5 seeds"."""
    counts = [entry.row.n for entry in lines]
    if min(counts) == max(counts):
        return plural(counts[0], "seed")
    return f"{min(counts)} to {max(counts)} seeds"


def _fresh_sizes(lines: list[ArenaEntry]) -> str:
    """Describe the numbers of fresh examples: "20,000"; empty without fresh tests."""
    sizes = set()
    for entry in lines:
        sizes |= {result.examples for result in entry.fresh.values()}
    return " or ".join(f"{size:,}" for size in sorted(sizes))


def published_cells(entry: ArenaEntry) -> tuple[Cell, str]:
    """Make the cell of the published value of a mechanism and name its source.

    There is none for an entry with another encoder or training, whose name has a remark.

    Returns:
        The value of the preferred source for this encoder, or else the range of the values for other encoders.
    """
    values = [value for value in entry.row.published if value.number is not None]
    if entry.name != entry.row.label or not values:
        return Cell(text="-"), ""
    order = {source: i for i, source in enumerate(PREFERRED)}

    def has_other_encoder(value: PrintedValue) -> bool:
        return training_of(value).protocol != "two-layer"

    best = min(values, key=lambda value: (has_other_encoder(value), order.get(value.source, len(order))))
    numbers = [value.number for value in values if value.number is not None]
    if has_other_encoder(best) and min(numbers) < max(numbers):
        return Cell(text=f"{min(numbers):g} to {max(numbers):g}"), f"{len(set(numbers))} values; other encoders"
    return Cell(text=best.text, value=best.number), source_text(best)


def source_text(value: PrintedValue) -> str:
    """Name the source of a printed value, with the size of an encoder other than the two-layer one."""
    training = training_of(value)
    if training.protocol == "two-layer":
        return value.source
    has_numbers = any(character.isdigit() for character in training.size)
    size = training.size if has_numbers else "another encoder"
    return f"{value.source}; {size}"


def machine(row: Row, device: str) -> str:
    """Name the hardware of the runs on a device, and their precision: AMD EPYC, x86_64 CPU, 1 thread, bf16."""
    names = set()
    for run_record in row.done:
        if run_record.device != device:
            continue
        name = run_record.device_name
        # The name of a CPU device lacks the processor.
        if on_cpu(run_record.device) and run_record.processor:
            name = f"{run_record.processor}, {name}"
        names.add(name)
    # Old records lack the processor. Their name is the end of a fuller name, which stands for both.
    specific = set()
    for name in names:
        longer_names = [other for other in names if other != name and other.endswith(name)]
        if not longer_names:
            specific.add(name)
    return f"{' / '.join(sorted(specific))}, {precision(row.runs)}"
