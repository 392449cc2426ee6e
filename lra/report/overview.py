"""The overview tables of a study: test scores of all tasks, and gains over the control."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import mean

import pandas as pd

from ..results.lr_search import without_search
from ..results.score_cells import gain_column, mark, score
from ..results.summary import Row
from ..results.table import Cell, Table, frame
from ..runs.reader import CONTROL


def score_table(rows: list[Row]) -> Table:
    """Make the table of test scores: a row for each mechanism and a column for each task.

    With several tasks, all with metric accuracy, the last column is the mean over tasks, for mechanisms with a result
    on every task. A mean has a standard deviation and a significance test only if its mechanism has the same seeds on
    all tasks.

    Args:
        rows: rows of a study.
    """
    study = rows[0].study
    # Leave out the trials of a learning-rate search if a mechanism also has runs at the budget's rate.
    rows = without_search(rows)
    tasks = list(dict.fromkeys(row.task for row in rows))
    labels = sorted({row.label for row in rows})

    # One column for each task, then their mean if all of them have accuracies.
    tasks_of = {task: [task] for task in tasks}
    metrics = {row.facts["metric"] for row in rows}
    if len(tasks) > 1 and metrics == {"accuracy"}:
        tasks_of["mean"] = tasks
    cells = score_columns(rows, labels, tasks_of)

    # Caption: protocol, budget, number of seeds, cost of pretraining.
    settings = set()
    for row in rows:
        settings.add(f"budget {row.facts['budget']}")
        settings.add(f"protocol {row.facts['protocol']}")
    about = f"Test scores, {', '.join(sorted(settings))}; {seed_range(cells.values())}."
    pretrained_rows = [row for row in rows if row.objective and row.cost]
    costs = [f"{row.label} on {row.task} {row.cost}" for row in pretrained_rows]
    if costs:
        about += f" Cost of pretraining and fine-tuning: {'; '.join(costs)}."
    return Table(
        name=f"study/{study}",
        title=study,
        about=about,
        cells=mechanism_cells(study, labels, cells),
    )


def score_columns(
    rows: list[Row],
    labels: Sequence[str],
    tasks_of: Mapping[str, Sequence[str]],
) -> dict[str, list[Cell]]:
    """Make the columns of a table of test scores, with the best cells of each column marked.

    Args:
        rows: rows of a study.
        labels: mechanism of each row of the table, in order.
        tasks_of: tasks that each column averages, by the name of the column.
    """
    row_of = {(row.label, row.task): row for row in rows}
    cells_of = {}
    for name, tasks in tasks_of.items():
        cells = []
        column_scores = []
        for label in labels:
            # The row of each task; None if the mechanism has no runs there.
            task_rows = [row_of.get((label, task)) for task in tasks]
            cell, scores_by_seed = average_over_tasks(task_rows)
            cells.append(cell)
            column_scores.append(scores_by_seed)
        cells_of[name] = mark(cells, column_scores)
    return cells_of


def average_over_tasks(rows: Sequence[Row | None]) -> tuple[Cell, dict[int, float]]:
    """Average the test scores of one mechanism over tasks.

    Args:
        rows: row of the mechanism on each task; None if it has no runs there.

    Returns:
        The cell, and the mean score by seed; the dict is empty if a task has no finished seed or the tasks have
        different seeds.
    """
    # A single task shows the row's own cell. Without a row, the length check below returns an empty cell.
    if len(rows) == 1 and rows[0]:
        return rows[0].cell, rows[0].scores

    # A mean needs a finished seed on every task.
    task_rows = [row for row in rows if row and row.scores]
    if len(task_rows) < len(rows):
        return Cell(), {}

    # With the same seeds on all tasks, average seed by seed: the mean then has a value per seed, which the standard
    # deviation and the test need.
    first, *others = [row.scores for row in task_rows]
    scores_by_seed = {}
    if all(other.keys() == first.keys() for other in others):
        for seed in first:
            task_scores = [row.scores[seed] for row in task_rows]
            scores_by_seed[seed] = mean(task_scores)
        cell = score(scores_by_seed)
    else:
        means = [mean(row.scores.values()) for row in task_rows]
        cell = Cell.of(mean(means), note="the tasks have different seeds")

    num_collapsed = sum(len(row.collapsed) for row in task_rows)
    if num_collapsed:
        num_runs = sum(row.n for row in task_rows)
        text = f"{cell.text} (collapsed {num_collapsed}/{num_runs})"
        cell = replace(cell, text=text, collapsed=num_collapsed)
    return cell, scores_by_seed


def over_control(rows: list[Row]) -> Table | None:
    """Make the table of gains over the control by task.

    Returns None if no other mechanism shares a task with a finished run of the control.

    Args:
        rows: rows of a study.
    """
    study = rows[0].study
    rows = without_search(rows)
    row_of = {(row.label, row.task): row for row in rows}
    controls = {row.task: row for row in rows if row.label == CONTROL and row.scores}
    labels = sorted({row.label for row in rows if row.task in controls} - {CONTROL})
    if not labels:
        return None

    # One column for each task on which the control has a result.
    columns = {}
    for task, control in controls.items():
        task_rows = [row_of.get((label, task)) for label in labels]
        columns[task] = _gains(task_rows, control)

    about = f"Gain in test score over the control without attention (attn={CONTROL}), ± standard error."
    unresolved = [task for task, cells in columns.items() if _all_tied(cells)]
    if unresolved:
        about += f" No gain with a standard error is significantly different from zero on {', '.join(unresolved)}."
    return Table(
        name=f"over-{CONTROL}/{study}",
        title=f"Gain over {CONTROL}",
        about=about,
        cells=mechanism_cells(study, labels, columns),
        errors=tuple(columns),
    )


def finding(rows: list[Row]) -> str:
    """State the gain over the control in a sentence, if exactly one other mechanism has a finished seed.

    Returns "" if there are several such mechanisms or none, several tasks, or no finished seed of the control.

    Args:
        rows: rows of a study.
    """
    tasks = {row.task for row in rows}
    row_of = {row.label: row for row in rows if row.scores}
    control = row_of.pop(CONTROL, None)
    if control is None or len(row_of) != 1 or len(tasks) > 1:
        return ""
    (row,) = row_of.values()
    (cell,) = _gains([row], control)
    verdict = ", no significant difference" if cell.mark == "tied" else ""
    return f"{row.label} scores {cell.text} points over {CONTROL}, the control without attention{verdict} ({cell.note})"


def _gains(rows: Sequence[Row | None], control: Row) -> list[Cell]:
    """Make the column of the gains over a control, with the collapsed seeds of both sides."""
    comparisons = [(row.scores, control.scores) if row else None for row in rows]
    cells = gain_column(comparisons)
    # Name collapsed seeds in the cell: they learned nothing, and collapsed seeds of the control inflate the gain.
    for i, row in enumerate(rows):
        remarks = []
        if row and row.collapsed:
            remarks.append(f"collapsed {len(row.collapsed)}/{row.n}")
        if control.collapsed:
            remarks.append(f"collapsed {len(control.collapsed)}/{control.n} of the control")
        if cells[i].text and remarks:
            cells[i] = replace(cells[i], text=f"{cells[i].text} ({', '.join(remarks)})")
    return cells


def _all_tied(cells: Sequence[Cell]) -> bool:
    """Whether there are gains with a standard error and none of them is significantly different from zero."""
    marks = {cell.mark for cell in cells if cell.std is not None}
    return marks == {"tied"}


def seed_range(lines: Iterable[Iterable[Cell | str]]) -> str:
    """Format the smallest and the largest number of seeds per cell: "n = 1 to 5".

    Args:
        lines: cells of each row or of each column; texts are ignored.
    """
    counts = set()
    for line in lines:
        counts |= {cell.n for cell in line if isinstance(cell, Cell) and cell.n}
    if not counts:
        return "no seed finished"
    fewest = min(counts)
    most = max(counts)
    if fewest == most:
        return f"n = {fewest}"
    return f"n = {fewest} to {most}"


def mechanism_cells(study: str, labels: Sequence[str], columns: Mapping[str, list[Cell]]) -> pd.DataFrame:
    """Make the cells of a table with a row for each mechanism.

    Args:
        study: name of the study.
        labels: mechanism of each row.
        columns: cells of each column by its name, in the order of the labels.
    """
    head = ("mechanism", *columns)
    # From columns to rows, each with its mechanism in front.
    table_rows = zip(labels, *columns.values(), strict=True)
    return frame(head, table_rows, keys(study, labels))


def keys(study: str, labels: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return the key (study, label, aliases) of each row, with no aliases; see ``frame``."""
    return [(study, label, "") for label in labels]
