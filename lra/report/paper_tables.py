"""The papers' tables as printed, with our comparable runs below each row of the same mechanism."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from statistics import geometric_mean

import yaml

from ..results import paper_values
from ..results.lr_search import label_without_rate, without_search
from ..results.paper_values import PrintedValue
from ..results.summary import Row, Studies
from ..results.table import Cell, Table, frame
from .overview import score_columns, seed_range

AVERAGE = "average"
# Tables of ratios to the Transformer: metric -> column name.
RATIOS = {"speedup_vs_transformer": "speed-up", "peak_memory_ratio_vs_transformer": "memory"}
# (study, label, aliases), see ``frame``, and the cells of a row.
Line = tuple[tuple[str, str, str], list[Cell | str]]


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A table that papers print; papers.yaml explains the fields."""

    name: str
    title: str
    sources: list[list[str]]
    protocol: str
    unlike: str
    metric: str = "accuracy"


def _read_papers() -> list[Paper]:
    """Read papers.yaml."""
    text = Path(__file__).with_name("papers.yaml").read_text("utf-8")
    return [Paper(**entry) for entry in yaml.safe_load(text)]


PAPERS = _read_papers()


def tables(studies: Studies) -> list[Table]:
    """Make every table of ``PAPERS`` with the rows of the studies, then the list of mechanisms that no paper names.

    Runs that are not comparable with published values are in no table.
    """
    paper_tables = [table(paper, studies) for paper in PAPERS]

    # Mechanisms that no paper names, with the tasks of their comparable runs.
    keys = []
    lines = []
    for study, rows in studies.items():
        rows = _comparable(rows)
        for label in unnamed(rows):
            tasks = [row.task for row in rows if row.label == label]
            keys.append((study, label, ""))
            lines.append([label, study, ", ".join(tasks)])
    if keys:
        custom = Table(
            name="own-mechanisms",
            title="Mechanisms that no paper names",
            about="They are the last rows of the tables that have one of their tasks.",
            cells=frame(("mechanism", "run", "tasks"), lines, keys),
            words=("mechanism", "run", "tasks"),
        )
        paper_tables.append(custom)
    return paper_tables


def _comparable(rows: list[Row]) -> list[Row]:
    return [row for row in rows if not paper_values.incomparable_choices([row.facts])]


def unnamed(rows: list[Row]) -> list[str]:
    """Return the labels without a published value for their mechanism, whatever its learning rate."""
    published_names = set()
    for value in paper_values.read():
        published_names.update(value.attn.split())
    rows = without_search(rows)
    labels = {row.label for row in rows if label_without_rate(row) not in published_names}
    return sorted(labels)


def printed(paper: Paper) -> list[PrintedValue]:
    """Return the values of a paper's table in the order of its sources, within each in the order of print."""
    values = []
    for source in paper.sources:
        for value in paper_values.read():
            if [value.name, value.table] == source:
                values.append(value)
    return values


def table(paper: Paper, studies: Studies) -> Table:
    """Make a paper's table: its rows in the order of print, each followed by our runs of the same mechanism.

    Our runs of mechanisms that no paper names come last.

    Args:
        paper: the table.
        studies: rows of each study by name.
    """
    values = printed(paper)
    is_ratios = values[0].metric in RATIOS
    column_of = attrgetter("metric" if is_ratios else "task")
    columns = list(dict.fromkeys(map(column_of, values)))

    # Printed values by row and column.
    printed_rows: dict[tuple[str, str], dict[str, PrintedValue]] = defaultdict(dict)
    for value in values:
        row = printed_rows[value.source, value.model]
        row[column_of(value)] = value

    # Printed rows in their order, each followed by our runs of the same mechanism.
    our_lines, unnamed_labels, incomparable = _our_lines(paper, values, columns, studies)
    lines: list[Line] = []
    for (source, model), row_values in printed_rows.items():
        run = "published" if len(paper.sources) == 1 else source
        cells = [_printed_cell(row_values.get(column)) for column in columns]
        # All values of a printed row name the same mechanisms.
        attn = next(iter(row_values.values())).attn
        key = ("", "", attn)
        lines.append((key, [model, run, *cells]))
        lines += _lines_of(our_lines, attn.split())
    # Mechanisms that no paper names come last.
    lines += _lines_of(our_lines, unnamed_labels)

    keys, rows = zip(*lines, strict=True)
    seeds = "" if is_ratios else seed_range(rows)
    names = [RATIOS.get(column, column) for column in columns]
    return Table(
        name=paper.name,
        title=paper.title,
        about=_caption(paper, seeds, incomparable),
        cells=frame(("mechanism", "run", *names), rows, keys),
        words=("mechanism", "run"),
    )


def _lines_of(lines: list[Line], labels: Collection[str]) -> list[Line]:
    """Select the rows of labels."""
    selected = []
    for key, cells in lines:
        _, label, _ = key
        if label in labels:
            selected.append((key, cells))
    return selected


def _caption(paper: Paper, seeds: str, incomparable: list[str]) -> str:
    """Explain the measurement of the published values and of our runs, and name studies that are left out."""
    differences = [seeds, paper.unlike]
    # Tables of ratios have no numbers of seeds and no marks.
    if seeds:
        differences.append("bold and ≈ compare the runs of one study with each other")
    if incomparable:
        differences.append(f"left out as not comparable: {', '.join(incomparable)}")
    return f"Published: {paper.protocol}. Ours: {'; '.join(filter(None, differences))}."


def _printed_cell(value: PrintedValue | None) -> Cell:
    if value is None:
        return Cell()
    std = float(value.std) if value.std else None
    return Cell(text=value.text, value=value.number, std=std, note=value.note)


def _our_lines(
    paper: Paper,
    values: Sequence[PrintedValue],
    columns: list[str],
    studies: Studies,
) -> tuple[list[Line], set[str], list[str]]:
    """Make the rows of our comparable runs.

    Returns:
        The rows, the labels that no paper names, and the studies with runs that are left out, with the reason.
    """
    is_ratios = values[0].metric in RATIOS
    names = set()
    for value in values:
        names.update(value.attn.split())
    lines: list[Line] = []
    unnamed_labels = set()
    incomparable = []
    for study, rows in studies.items():
        reason = paper_values.incomparable_choices(row.facts for row in rows)
        if reason:
            incomparable.append(f"{study} ({reason})")

        # Comparable runs on the tasks of the table.
        rows = _comparable(rows)
        if not is_ratios:
            rows = [row for row in rows if row.facts["metric"] == paper.metric]
            rows = [row for row in rows if row.task in columns]
        # Rows of the mechanisms in the table, and of mechanisms that no table has.
        study_unnamed = unnamed(rows)
        unnamed_labels.update(study_unnamed)
        study_labels = {row.label for row in rows}
        labels = sorted(study_labels & names | set(study_unnamed))

        cells_of_labels: Iterable[Sequence[Cell]]
        if is_ratios:
            cells_of_labels = _ratios(rows, labels, columns)
        else:
            cells_of_columns = score_columns(rows, labels, _tasks_of_columns(columns))
            cells_of_labels = zip(*cells_of_columns.values(), strict=True)
        for label, cells in zip(labels, cells_of_labels, strict=True):
            key = (study, label, "")
            lines.append((key, [label, study, *cells]))
    return lines, unnamed_labels, incomparable


def _tasks_of_columns(columns: list[str]) -> dict[str, list[str]]:
    """Return the tasks that each column averages over."""
    # Our averages leave Path-X out, as the official leaderboard does; most papers on state-space models count it.
    tasks_of = {column: [column] for column in columns}
    if AVERAGE in columns:
        tasks_of[AVERAGE] = [task for task in columns if task not in (AVERAGE, "pathfinder_x")]
    return tasks_of


def _ratios(rows: list[Row], labels: list[str], columns: list[str]) -> list[list[Cell]]:
    """Compute speed-up and memory relative to softmax: geometric means over tasks measured on one device."""
    references = {}
    for row in rows:
        if row.label == "softmax":
            references[row.task, row.ms_device] = row
    lines = []
    for label in labels:
        # Ratios by task.
        speed_ups = {}
        memory_ratios = {}
        for row in rows:
            reference = references.get((row.task, row.ms_device))
            if row.label != label or reference is None:
                continue
            if row.ms and reference.ms:
                speed_ups[row.task] = reference.ms / row.ms
            if row.peak and reference.peak:
                memory_ratios[row.task] = row.peak / reference.peak
        ratios = {"speedup_vs_transformer": speed_ups, "peak_memory_ratio_vs_transformer": memory_ratios}
        lines.append([_ratio_cell(ratios[column]) for column in columns])
    return lines


def _ratio_cell(ratios: dict[str, float]) -> Cell:
    if not ratios:
        return Cell()
    note = "; ".join(f"{task} {ratio:.2f}" for task, ratio in ratios.items())
    return Cell.of(geometric_mean(ratios.values()), note=note)
