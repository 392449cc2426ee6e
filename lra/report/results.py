"""The tables of a study: mechanisms by tasks, the details of each task, and means over tasks."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import NamedTuple

from ..runs.reader import CONTROL
from . import extensions, published
from .rates import untuned
from .significance import APART, MARKS, difference, mark, score
from .summary import FACTS, SEPARATOR, Row, joined, number, task_order
from .table import Cell, Table, frame, stem

COLLAPSED = "Collapsed seeds give every example the same answer; the mean is over all seeds, with them. "
BELOW = ("details", "published")
AVERAGED = (
    "Means over tasks, compared only between mechanisms with the same tasks. Published means are recomputed from the "
    "values per task over exactly these tasks."
)


def results(rows: list[Row]) -> Table:
    """Make the table of test scores, with a line for each label and a column for each task.

    The last column is the mean over tasks of the labels with a result on every task of the study; its deviation and
    test need the same seeds on all of them.
    """
    study, rows = rows[0].study, untuned(rows)
    tasks = list(dict.fromkeys(row.task for row in rows))
    labels = sorted({row.label for row in rows})
    averaged = len(tasks) > 1 and {row.facts["metric"] for row in rows} == {"accuracy"}
    columns = scores(rows, labels, {task: [task] for task in tasks} | ({"mean": tasks} if averaged else {}))
    costs = [f"{row.label} on {row.task} {row.cost}" for row in rows if row.objective and row.cost]
    pretrained = f"Pretrained first, tokens and time of both phases: {'; '.join(costs)}. " if costs else ""
    dead = COLLAPSED if any(row.collapsed for row in rows) else ""
    lines = zip(labels, *columns.values(), strict=True)
    treatment = sorted({f"{key} {row.facts[key]}" for row in rows for key in ("protocol", "budget")})
    return Table(
        name=stem(f"study-{study}"),
        title=study,
        about=f"Test scores, mean ± sample standard deviation over seeds ({seeds(columns.values())}); "
        f"{', '.join(treatment)}. {pretrained}{dead}{MARKS}",
        cells=frame(("mechanism", *columns), lines, [(study, label, "") for label in labels]),
    )


def seeds(lines: Iterable[Iterable[Cell | str]]) -> str:
    """State the numbers of seeds of all cells of a table: n = 1 to 5."""
    counts = sorted({cell.n for line in lines for cell in line if isinstance(cell, Cell) and cell.n})
    if not counts:
        return "no seed done"
    return f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"


def scores(rows: list[Row], labels: Sequence[str], columns: Mapping[str, Sequence[str]]) -> dict[str, list[Cell]]:
    """Make the columns of a table of test scores, with the best cells of each column and those tied with them marked.

    Args:
        rows: results of a study.
        labels: labels of the lines.
        columns: tasks over which each column is the mean, by its name.
    """
    found = {(row.label, row.task): row for row in rows}
    made = {}
    for name, tasks in columns.items():
        means = [over_tasks([found.get((label, task)) for task in tasks]) for label in labels]
        made[name] = mark([cell for cell, _ in means], [by_seed for _, by_seed in means])
    return made


def over_control(rows: list[Row]) -> Table | None:
    """Make the table of gains over the control, by task; None if the study has no finished run of the control."""
    found = {(row.label, row.task): row for row in untuned(rows)}
    control = {task: row for (label, task), row in found.items() if label == CONTROL and row.scores}
    labels = sorted({label for label, task in found if task in control} - {CONTROL})
    if not labels:
        return None
    columns = {task: [_gain(found.get((name, task)), row) for name in labels] for task, row in control.items()}
    marks = lambda cells: {cell.mark for cell in cells if cell.std is not None}
    alike = [task for task, cells in columns.items() if marks(cells) == {"tied"}]
    study, lines = rows[0].study, zip(labels, *columns.values(), strict=True)
    return Table(
        name=stem(f"over-{CONTROL}-{study}"),
        title=f"Over {CONTROL}",
        about=f"Test score less that of attn={CONTROL}, the control without attention, of the same study and task, ± "
        f"standard error from the seeds of both. ≈: not told apart from it, below {APART} standard errors."
        + "".join(f" {task}: this task at this budget does not tell mechanisms apart." for task in alike),
        cells=frame(("mechanism", *columns), lines, [(study, label, "") for label in labels]),
        errors=tuple(columns),
    )


def finding(rows: list[Row]) -> str:
    """Say in one sentence what a study of one task, one mechanism and the control found; empty for other studies."""
    scored = {row.label: row for row in rows if row.scores}
    control = scored.pop(CONTROL, None)
    if not control or len(scored) != 1 or len({row.task for row in rows}) > 1:
        return ""
    (row,) = scored.values()
    gain = _gain(row, control)
    told = ", not told apart from it" if gain.mark == "tied" else ""
    return f"{row.label} scores {gain.text} points over {CONTROL}, the control without attention{told} ({gain.note})"


def _gain(row: Row | None, control: Row) -> Cell:
    """Make a cell of a row's gain, with the collapsed seeds of the row and of the control."""
    made = difference(row.scores, control.scores) if row else Cell()
    dead = [
        f"collapsed {len(r.collapsed)}/{r.n}" + " of the control" * (r is control)
        for r in (row, control)
        if r and r.collapsed
    ]
    return replace(made, text=f"{made.text} ({', '.join(dead)})") if made.text and dead else made


def over_tasks(rows: list[Row | None]) -> tuple[Cell, dict[int, float]]:
    """Average over tasks: a cell, and the mean of each seed, none if a task is missing or has other seeds."""
    if len(rows) == 1 and rows[0]:
        return rows[0].cell, rows[0].scores
    if not all(row and row.scores for row in rows):
        return Cell(), {}
    if all(row.scores.keys() == rows[0].scores.keys() for row in rows):
        by_seed = {seed: mean(row.scores[seed] for row in rows) for seed in rows[0].scores}
        made = score(by_seed)
    else:
        by_seed, made = {}, Cell.of(mean(row.test for row in rows), note="the tasks have different seeds")
    if dead := sum(len(row.collapsed) for row in rows):
        made = replace(made, text=f"{made.text} (collapsed {dead}/{sum(row.n for row in rows)})", collapsed=dead)
    return made, by_seed


class Line(NamedTuple):
    """A line of a mechanism: cells by column, facts by the keys of FACTS, remarks, a line for each published value."""

    label: str
    cells: dict[str, Cell]
    facts: dict[str, str]
    details: list[str]
    published: list[str]


def details(rows: list[Row]) -> list[Table]:
    """Make a table for each task of a study and, if there are several tasks, one for each set of tasks averaged over.

    Args:
        rows: results of the study, sorted by task.
    """
    study, tables = rows[0].study, []
    for task, group in itertools.groupby(rows, key=lambda row: row.task):
        lines, same = [], list(group)
        columns = extensions.columns(same)
        for i, row in enumerate(same):
            cells = _cells(row) | {column.name: column.cells[i] for column in columns}
            values = [] if published.caution([row.facts]) else [f"{p.source}: {p.text}" for p in row.published]
            lines.append(Line(row.label, cells, row.facts, row.remarks, values))
        tables.append(_table(study, task, lines, " ".join(column.about for column in columns)))
    return tables + _averages(rows)


def _cells(row: Row) -> dict[str, Cell]:
    constants, params = ({getattr(r, name) for r in row.runs.values()} for name in ("constant_baseline", "params"))
    test = score(row.scores, collapsed=row.collapsed)
    return {
        "test": replace(test, text=test.text or number(None), n=None),
        "n": Cell(text=f"{row.n} (+{row.lost})" if row.lost else str(row.n), value=row.n),
        "dev": Cell.of(row.dev),
        "constant": Cell(text=joined(map(float, constants)), value=min(constants)),
        "ms": Cell.of(row.ms, "{:.1f}".format),
        "params": Cell(text=joined(params), value=min(params)),
    }


def _averages(rows: list[Row]) -> list[Table]:
    """Make a table for each set of two or more tasks on which a mechanism has accuracies, the largest set first."""
    accurate = sorted((row for row in rows if row.facts["metric"] == "accuracy"), key=lambda row: row.label)
    sets: dict[tuple[str, ...], list[Line]] = defaultdict(list)
    for label, group in itertools.groupby(accurate, key=lambda row: row.label):
        of_label = list(group)
        tests = {row.task: row.test for row in of_label if row.test is not None}
        if len(tests) < 2:
            continue
        facts = {
            key: joined(word for row in of_label for word in row.facts[key].split(SEPARATOR) if word)
            for key in ("protocol", "budget", "data")
        }
        missing = [f"{row.task}: collapsed {len(row.collapsed)}/{row.n}" for row in of_label if row.collapsed]
        missing += [f"no finished seed on {row.task}" for row in of_label if row.test is None]
        means = [] if published.caution([facts]) else published.averages(label, tests)
        values = [f"{source}: {number(average)}" for source, average in means]
        sets[*tests].append(Line(label, {"mean": Cell.of(mean(tests.values()))}, facts, missing, values))
    ordered = sorted(sets, key=lambda tasks: (-len(tasks), [task_order(task) for task in tasks]))
    return [_table(rows[0].study, f"mean of {', '.join(s)}", sets[s], AVERAGED) for s in ordered]


def _table(study: str, title: str, lines: list[Line], about: str) -> Table:
    """Make a table; facts that all lines share are stated in ``about``, the others in their lines."""
    shared = {}
    for key in FACTS:
        values = {line.facts.get(key, "") for line in lines}
        if key not in ("pretrained", "data"):  # what some lines lack is not true of all
            values -= {""}
        if len(values) == 1 and SEPARATOR not in (value := values.pop()):
            shared[key] = value
    common = "; ".join(FACTS[key].format(value) for key, value in shared.items() if value)
    caution = published.caution(line.facts for line in lines)
    texts = []
    for line in lines:
        facts = [FACTS[key].format(line.facts[key]) for key in FACTS if key not in shared and line.facts.get(key)]
        texts.append([line.label, *line.cells.values(), "; ".join(line.details + facts), "\n".join(line.published)])
    return Table(
        name=stem(f"{study}-{title}"),
        title=title,
        about=" ".join(text for text in (common and f"{common[0].upper()}{common[1:]}.", about, caution) if text),
        cells=frame(("mechanism", *lines[0].cells, *BELOW), texts, [(study, line.label, "") for line in lines]),
        words=("mechanism", *BELOW),
        below=BELOW,
    )
