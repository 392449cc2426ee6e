"""The papers' tables as printed, with comparable runs of ours below each line that has a mechanism of ours."""

from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from statistics import geometric_mean

import yaml

from . import published
from .published import PrintedValue
from .rates import base, untuned
from .results import scores, seeds
from .significance import MARKS
from .summary import Row
from .table import Cell, Table, frame

AVERAGE = "average"
NAMES = {"speedup_vs_transformer": "speed-up", "peak_memory_ratio_vs_transformer": "memory"}


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A table that papers print; papers.yaml explains the fields."""

    name: str
    title: str
    sources: list[list[str]]
    protocol: str
    unlike: str
    metric: str = "accuracy"


PAPERS = [Paper(**entry) for entry in yaml.safe_load(Path(__file__).with_name("papers.yaml").read_text("utf-8"))]


def tables(studies: dict[str, list[Row]]) -> list[Table]:
    """Make every table of ``PAPERS`` with the rows of the studies, then the list of mechanisms that no paper names."""
    keys = [(study, label, "") for study, rows in studies.items() for label in unnamed(rows)]
    tasks = [", ".join(row.task for row in studies[study] if row.label == label) for study, label, _ in keys]
    lines = [[label, study, on] for (study, label, _), on in zip(keys, tasks, strict=True)]
    own = Table(
        name="own-mechanisms",
        title="Mechanisms that no paper names",
        about="They stand last in the tables of papers that have one of their tasks.",
        cells=frame(("mechanism", "run", "tasks"), lines, keys),
        words=("mechanism", "run", "tasks"),
    )
    return [table(paper, studies) for paper in PAPERS] + [own] * bool(keys)


def unnamed(rows: list[Row]) -> list[str]:
    """The labels of rows, whatever their learning rate, that no line of a paper names."""
    named = {word for value in published.read() for word in value.attn.split()}
    return sorted({row.label for row in untuned(rows) if base(row) not in named})


def printed(paper: Paper) -> list[PrintedValue]:
    """The values of a paper's table, in the order of its sources, within each in that of print."""
    return [v for source in paper.sources for v in published.read() if [v.name, v.table] == source]


def table(paper: Paper, studies: dict[str, list[Row]]) -> Table:
    """Make a paper's table: its lines in the order of print, ours below, then ours that no paper names.

    Args:
        paper: the table.
        studies: their rows by name.
    """
    values = printed(paper)
    ratios = values[0].metric in NAMES
    column_of = attrgetter("metric" if ratios else "task")
    columns = list(dict.fromkeys(map(column_of, values)))
    cell = lambda v: Cell(text=v.text, value=v.number, std=float(v.std) if v.std else None, note=v.note)
    by_place = {(v.source, v.model, column_of(v)): cell(v) for v in values}
    attn = {(v.source, v.model): v.attn for v in values}
    words = set(" ".join(attn.values()).split())
    # The benchmark's averages leave Path-X out, since hardly any mechanism learns it.
    averaged = [task for task in columns if task not in (AVERAGE, "pathfinder_x")]
    over = {column: averaged if column == AVERAGE else [column] for column in columns}
    left_out, ours, last = "", [], set()
    for study, rows in studies.items():
        if choices := published.unlike(row.facts for row in rows):
            left_out += f"Runs of {study} that do not compare with them are left out ({choices}). "
        rows = [row for row in rows if not published.unlike([row.facts])]
        if not ratios:
            rows = [row for row in rows if row.task in columns and row.facts["metric"] == paper.metric]
        labels = sorted({row.label for row in rows if row.label in words} | set(own := unnamed(rows)))
        last.update(own)
        found = _ratios(rows, labels, columns) if ratios else zip(*scores(rows, labels, over).values(), strict=True)
        for label, cells in zip(labels, found, strict=True):
            ours.append(((study, label, ""), [label, study, *cells]))
    lines = []
    for (source, model), names in attn.items():
        cells = [by_place.get((source, model, column), Cell()) for column in columns]
        lines.append((("", "", names), [model, "published" if len(paper.sources) == 1 else source, *cells]))
        lines += [line for line in ours if line[0][1] in names.split()]
    lines += [line for line in ours if line[0][1] in last]
    keys, rows = zip(*lines, strict=True)
    n = "" if ratios else f"mean ± sample standard deviation over seeds ({seeds(rows)}). "
    return Table(
        name=paper.name,
        title=paper.title,
        about=f"Published: {paper.protocol} Ours: {n}{paper.unlike} {left_out}{MARKS}",
        cells=frame(("mechanism", "run", *(NAMES.get(column, column) for column in columns)), rows, keys),
        words=("mechanism", "run"),
    )


def _ratios(rows: list[Row], labels: list[str], columns: list[str]) -> list[list[Cell]]:
    """Compute speed-up and memory against softmax, geometric means over the tasks that both have on one device."""
    base = {(row.task, row.facts["device"]): row for row in rows if row.label == "softmax"}
    lines = []
    for label in labels:
        pairs = [(row, base.get((row.task, row.facts["device"]))) for row in rows if row.label == label]
        times = {row.task: ref.ms / row.ms for row, ref in pairs if ref and row.ms and ref.ms}
        sizes = {row.task: row.peak / ref.peak for row, ref in pairs if ref and row.peak and ref.peak}
        ratios = dict(zip(NAMES, (times, sizes), strict=True))
        lines.append([_ratio(ratios[column]) for column in columns])
    return lines


def _ratio(values: dict[str, float]) -> Cell:
    note = "; ".join(f"{task} {x:.2f}" for task, x in values.items())
    return Cell.of(geometric_mean(values.values()), note=note) if values else Cell()
