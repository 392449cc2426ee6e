"""The tables of details of a study: one for each task, and one for each set of tasks that is averaged."""

import itertools
from collections import defaultdict
from dataclasses import replace
from statistics import mean
from typing import NamedTuple

from ..evaluate.record import FreshTest
from ..results import paper_values
from ..results.score_cells import score
from ..results.summary import FACTS, Row
from ..results.table import SEPARATOR, Cell, Table, TableRow, frame, joined, number
from . import extensions
from .arena_entries import fresh_cell, fresh_results, seeds_text
from .overview import keys

# Text columns, which a terminal shows below each row.
TEXT_COLUMNS = ("details", "published")
AVERAGED = "Published means are recomputed over exactly these tasks."


class Line(NamedTuple):
    """A row of a table of details.

    Args:
        label: name of the mechanism.
        cells: number cells by column.
        facts: values of FACTS.
        remarks: what went wrong with diverged, collapsed or missing seeds.
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
        fresh_tests = [_fresh_results(row) for row in task_rows]
        has_fresh_tests = any(fresh_tests)
        lines = []
        for i, row in enumerate(task_rows):
            cells = _cells(row)
            if has_fresh_tests:
                # Next to the score on the standard test set.
                cells = {"test": cells["test"], "fresh test": fresh_cell(fresh_tests[i], row.n), **cells}
            for column in extra_columns:
                cells[column.name] = column.cells[i]
            line = Line(row.label, cells, row.facts, row.remarks, _published_values(row))
            lines.append(line)
        about = " ".join(column.about for column in extra_columns)
        tables.append(_details_table(study, task, lines, about))
    return tables + _averages(rows)


def _fresh_results(row: Row) -> dict[int, FreshTest]:
    """Read the fresh-test results of a row; none if a file is damaged, which ``export`` reports."""
    try:
        return fresh_results(row)
    except ValueError:
        return {}


def _published_values(row: Row) -> list[str]:
    if paper_values.incomparable_choices([row.facts]):
        return []
    # Values of comparable runs only.
    return [f"{value.source}: {value.text}" for value in row.published]


def _cells(row: Row) -> dict[str, Cell]:
    """Make the number cells of a row of a table of details."""
    # Seeds of one row may differ in these if their settings changed in between.
    records = list(row.runs.values())
    constants = {float(r.constant_baseline) for r in records}
    params = {r.params for r in records}

    test = score(row.scores, collapsed=row.collapsed)
    if not test.text:
        test = replace(test, text="-")
    return {
        # The number of seeds has its own column.
        "test": replace(test, n=None),
        "n": Cell(text=seeds_text(row.n, row.num_failed), value=row.n, failed=row.num_failed or None),
        "val": Cell.of(row.val),
        "constant": Cell(text=joined(constants), value=min(constants)),
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
    for label, label_rows in sorted(by_label.items()):
        tasks = tuple(row.task for row in label_rows if row.test is not None)
        if len(tasks) > 1:
            line = _average_line(label, label_rows)
            by_tasks[tasks].append(line)

    # The largest set of tasks first.
    def order(tasks: tuple[str, ...]) -> tuple:
        return -len(tasks), list(map(paper_values.task_order, tasks))

    study = rows[0].study
    tables = []
    for tasks in sorted(by_tasks, key=order):
        lines = by_tasks[tasks]
        title = f"mean of {', '.join(tasks)}"
        # A table without published means does not explain them.
        about = AVERAGED if any(line.published for line in lines) else ""
        tables.append(_details_table(study, title, lines, about))
    return tables


def _average_line(label: str, rows: list[Row]) -> Line:
    """Average one mechanism over the tasks on which it has a finished seed."""
    tests = {row.task: row.test for row in rows if row.test is not None}
    average = mean(tests.values())

    # Facts of all tasks.
    facts = {}
    for key in ("protocol", "budget", "data"):
        values: list[str] = []
        for row in rows:
            # A row's fact may already hold several values.
            row_values = row.facts[key].split(SEPARATOR)
            values += filter(None, row_values)
        facts[key] = joined(values)

    # What went wrong on single tasks.
    remarks = []
    for row in rows:
        if row.collapsed:
            remarks.append(f"{row.task}: collapsed {len(row.collapsed)}/{row.n}")
    for row in rows:
        if row.test is None:
            remarks.append(f"no finished seed on {row.task}")

    published_means = []
    if not paper_values.incomparable_choices([facts]):
        for source, published_mean in paper_values.averages(label, tests):
            published_means.append(f"{source}: {number(published_mean)}")
    return Line(label, {"mean": Cell.of(average)}, facts, remarks, published_means)


def _details_table(study: str, title: str, lines: list[Line], about: str) -> Table:
    """Make a table of details; facts shared by all rows are stated in the caption, the others in their rows."""
    # Facts of all rows go into the caption.
    shared = _shared_facts(lines)
    caption = []
    common = _format_facts(shared)
    if common:
        sentence = "; ".join(common)
        caption.append(f"{sentence[0].upper()}{sentence[1:]}.")
    if about:
        caption.append(about)
    caution = paper_values.caution(line.facts for line in lines)
    if caution:
        caption.append(caution)

    # The other facts follow the remarks of each row.
    rows: list[TableRow] = []
    for line in lines:
        other_facts = {key: value for key, value in line.facts.items() if key not in shared}
        notes = line.remarks + _format_facts(other_facts)
        cells: TableRow = [*line.cells.values(), "; ".join(notes), "\n".join(line.published)]
        rows.append([line.label, *cells])
    head = ("mechanism", *lines[0].cells, *TEXT_COLUMNS)
    labels = [line.label for line in lines]
    return Table(
        name=f"{study}/{title}",
        title=title,
        about=" ".join(caption),
        cells=frame(head, rows, keys(study, labels)),
        words=("mechanism", *TEXT_COLUMNS),
        below=TEXT_COLUMNS,
        errors=("fresh test",) if "fresh test" in head else (),
    )


def _format_facts(facts: dict[str, str]) -> list[str]:
    """Format facts in the order of FACTS, without empty ones."""
    return [form.format(facts[key]) for key, form in FACTS.items() if facts.get(key)]


def _shared_facts(lines: list[Line]) -> dict[str, str]:
    """Return the facts with one value for all rows."""
    shared = {}
    for key in FACTS:
        values = {line.facts.get(key, "") for line in lines}
        # An empty fact agrees with any value, except in these two: there it means "not pretrained", "official data".
        if key not in ("pretrained", "data"):
            values -= {""}
        if len(values) != 1:
            continue
        (value,) = values
        if SEPARATOR not in value:
            shared[key] = value
    return shared
