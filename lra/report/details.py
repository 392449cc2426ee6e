"""The tables of details of a study: one for each task, and one for each set of tasks that is averaged."""

import itertools
from collections import defaultdict
from dataclasses import replace
from statistics import mean
from typing import NamedTuple

from ..results import published
from ..results.score_cells import score
from ..results.summary import FACTS, SEPARATOR, Row, joined, number, task_order
from ..results.table import Cell, Table, frame
from . import extensions
from .results import keys

# Text columns, which a terminal shows below each row.
TEXT_COLUMNS = ("details", "published")
AVERAGED = "Published means are recomputed over exactly these tasks."


class Line(NamedTuple):
    """A row of a table of details.

    Args:
        label: name of the mechanism.
        cells: number cells by column.
        facts: values of FACTS.
        remarks: what went wrong with failed and collapsed seeds.
        published: "source: value" of each published value.
    """

    label: str
    cells: dict[str, Cell]
    facts: dict[str, str]
    remarks: list[str]
    published: list[str]


def details(rows: list[Row]) -> list[Table]:
    """Make a table of each task, and one of the means over each set of tasks.

    Args:
        rows: results of the study, sorted by task.
    """
    study = rows[0].study
    tables = []
    for task, group in itertools.groupby(rows, key=lambda row: row.task):
        task_rows = list(group)
        # Studies may add columns, such as the locality of a mechanism.
        extra_columns = extensions.columns(task_rows)
        lines = []
        for i, row in enumerate(task_rows):
            cells = _cells(row) | {column.name: column.cells[i] for column in extra_columns}
            lines.append(Line(row.label, cells, row.facts, row.remarks, _published_values(row)))
        about = " ".join(column.about for column in extra_columns)
        tables.append(_details_table(study, task, lines, about))
    return tables + _averages(rows)


def _published_values(row: Row) -> list[str]:
    if published.caution([row.facts]):
        return []
    return [f"{value.source}: {value.text}" for value in row.published]


def _cells(row: Row) -> dict[str, Cell]:
    """Make the number cells of a row of a table of details."""
    # Seeds of one row may differ in these if their settings changed in between.
    constants = {r.constant_baseline for r in row.runs.values()}
    params = {r.params for r in row.runs.values()}
    test = score(row.scores, collapsed=row.collapsed)
    num_seeds = f"{row.n} (+{row.num_failed})" if row.num_failed else str(row.n)
    return {
        "test": replace(test, text=test.text or number(None), n=None),
        "n": Cell(text=num_seeds, value=row.n),
        "val": Cell.of(row.val),
        "constant": Cell(text=joined(map(float, constants)), value=min(constants)),
        "ms": Cell.of(row.ms, "{:.1f}".format),
        "params": Cell(text=joined(params), value=min(params)),
    }


def _averages(rows: list[Row]) -> list[Table]:
    """Make a table for each set of two or more tasks on which a mechanism has accuracies, the largest set first.

    Means are compared only between mechanisms with the same tasks.
    """
    # Only accuracies can be averaged.
    by_label: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.facts["metric"] == "accuracy":
            by_label[row.label].append(row)

    # Mechanisms with results on the same tasks share a table.
    by_tasks: dict[tuple[str, ...], list[Line]] = defaultdict(list)
    for label in sorted(by_label):
        tasks = tuple(row.task for row in by_label[label] if row.test is not None)
        if len(tasks) > 1:
            by_tasks[tasks].append(_average_line(label, by_label[label]))

    ordered = sorted(by_tasks, key=lambda tasks: (-len(tasks), [task_order(task) for task in tasks]))
    tables = []
    for tasks in ordered:
        title = f"mean of {', '.join(tasks)}"
        tables.append(_details_table(rows[0].study, title, by_tasks[tasks], AVERAGED))
    return tables


def _average_line(label: str, rows: list[Row]) -> Line:
    """Average one mechanism over the tasks on which it has a finished seed."""
    tests = {row.task: row.test for row in rows if row.test is not None}

    facts = {}
    for key in ("protocol", "budget", "data"):
        values = []
        for row in rows:
            # A row's fact may already hold several values.
            values += filter(None, row.facts[key].split(SEPARATOR))
        facts[key] = joined(values)

    remarks = [f"{row.task}: collapsed {len(row.collapsed)}/{row.n}" for row in rows if row.collapsed]
    remarks += [f"no finished seed on {row.task}" for row in rows if row.test is None]
    means = [] if published.caution([facts]) else published.averages(label, tests)
    values = [f"{source}: {number(average)}" for source, average in means]
    return Line(label, {"mean": Cell.of(mean(tests.values()))}, facts, remarks, values)


def _details_table(study: str, title: str, lines: list[Line], about: str) -> Table:
    """Make a table of details; facts shared by all rows are stated in the caption, the others in their rows."""
    # Facts of all rows go into the caption.
    shared = _shared_facts(lines)
    common = "; ".join(FACTS[key].format(value) for key, value in shared.items() if value)
    caution = published.caution(line.facts for line in lines)
    caption = [f"{common[0].upper()}{common[1:]}."] if common else []
    # Without published values there is nothing to say about their means.
    caption.append(caution if about == AVERAGED and caution else " ".join(filter(None, [about, caution])))

    # The other facts follow the remarks of each row.
    rows = []
    for line in lines:
        facts = [FACTS[key].format(line.facts[key]) for key in FACTS if key not in shared and line.facts.get(key)]
        notes = "; ".join(line.remarks + facts)
        rows.append([line.label, *line.cells.values(), notes, "\n".join(line.published)])
    head = ("mechanism", *lines[0].cells, *TEXT_COLUMNS)
    return Table(
        name=f"{study}/{title}",
        title=title,
        about=" ".join(filter(None, caption)),
        cells=frame(head, rows, keys(study, [line.label for line in lines])),
        words=("mechanism", *TEXT_COLUMNS),
        below=TEXT_COLUMNS,
    )


def _shared_facts(lines: list[Line]) -> dict[str, str]:
    """Return the facts with one value for all rows."""
    shared = {}
    for key in FACTS:
        values = {line.facts.get(key, "") for line in lines}
        # Pretraining and other data of some rows are no facts of the whole table.
        if key not in ("pretrained", "data"):
            values -= {""}
        if len(values) != 1:
            continue
        (value,) = values
        if SEPARATOR not in value:
            shared[key] = value
    return shared
