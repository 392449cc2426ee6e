"""The overview tables of a study: test scores of all tasks, and gains over the control."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import mean

from ..results.lr_search import without_search
from ..results.score_cells import gain, mark, score
from ..results.summary import Row
from ..results.table import Cell, Table, frame
from ..runs.reader import CONTROL


def results(rows: list[Row]) -> Table:
    """Make the table of test scores: a row for each mechanism and a column for each task.

    The last column is the mean over tasks of the mechanisms with a result on every task. Its standard deviation and
    test need the same seeds on all tasks.
    """
    study = rows[0].study
    # Trials of a learning-rate search have a table of their best rates instead.
    rows = without_search(rows)
    tasks = list(dict.fromkeys(row.task for row in rows))
    labels = sorted({row.label for row in rows})

    # One column for each task, then their mean if all of them have accuracies.
    columns = {task: [task] for task in tasks}
    if len(tasks) > 1 and {row.facts["metric"] for row in rows} == {"accuracy"}:
        columns["mean"] = tasks
    cells = scores(rows, labels, columns)

    # Caption: protocol, budget, number of seeds, cost of pretraining.
    treatments = {f"{key} {row.facts[key]}" for row in rows for key in ("protocol", "budget")}
    about = f"Test scores, {', '.join(sorted(treatments))}; {seeds(cells.values())}."
    costs = [f"{row.label} on {row.task} {row.cost}" for row in rows if row.objective and row.cost]
    if costs:
        about += f" Cost of pretraining and fine-tuning: {'; '.join(costs)}."
    return Table(
        name=f"study/{study}",
        title=study,
        about=about,
        cells=frame(("mechanism", *cells), zip(labels, *cells.values(), strict=True), keys(study, labels)),
    )


def seeds(lines: Iterable[Iterable[Cell | str]]) -> str:
    """Format the numbers of seeds of all cells of a table: "n = 1 to 5"."""
    counts = set()
    for line in lines:
        counts |= {cell.n for cell in line if isinstance(cell, Cell) and cell.n}
    if not counts:
        return "no seed finished"
    if len(counts) == 1:
        return f"n = {min(counts)}"
    return f"n = {min(counts)} to {max(counts)}"


def scores(rows: list[Row], labels: Sequence[str], columns: Mapping[str, Sequence[str]]) -> dict[str, list[Cell]]:
    """Make the columns of a table of test scores, with the best cells of each column marked.

    Args:
        rows: results of a study.
        labels: mechanism of each row.
        columns: tasks to average over, by the name of the column.
    """
    row_of = {(row.label, row.task): row for row in rows}
    columns_of_cells = {}
    for name, tasks in columns.items():
        cells = []
        by_seed = []
        for label in labels:
            # The row of each task; None if the mechanism has no runs there.
            task_rows = [row_of.get((label, task)) for task in tasks]
            cell, seed_scores = over_tasks(task_rows)
            cells.append(cell)
            by_seed.append(seed_scores)
        columns_of_cells[name] = mark(cells, by_seed)
    return columns_of_cells


def over_control(rows: list[Row]) -> Table | None:
    """Make the table of gains over the control by task; None if the control has no finished run."""
    study = rows[0].study
    row_of = {(row.label, row.task): row for row in without_search(rows)}
    control = {task: row for (label, task), row in row_of.items() if label == CONTROL and row.scores}
    labels = sorted({label for label, task in row_of if task in control} - {CONTROL})
    if not labels:
        return None

    # One column for each task on which the control has a result.
    columns = {}
    for task, control_row in control.items():
        columns[task] = [_gain(row_of.get((label, task)), control_row) for label in labels]

    about = f"Gain in test score over the control without attention (attn={CONTROL}), ± standard error."
    unresolved = [task for task, cells in columns.items() if _all_tied(cells)]
    if unresolved:
        about += f" No gain is significantly different from zero on {', '.join(unresolved)}."
    return Table(
        name=f"over-{CONTROL}/{study}",
        title=f"Gain over {CONTROL}",
        about=about,
        cells=frame(("mechanism", *columns), zip(labels, *columns.values(), strict=True), keys(study, labels)),
        errors=tuple(columns),
    )


def _all_tied(cells: Sequence[Cell]) -> bool:
    """Whether there are gains with a standard error, and none is significant."""
    marks = {cell.mark for cell in cells if cell.std is not None}
    return marks == {"tied"}


def finding(rows: list[Row]) -> str:
    """Summarise a study of one task, one mechanism and the control in a sentence; "" for other studies."""
    scored = {row.label: row for row in rows if row.scores}
    control = scored.pop(CONTROL, None)
    if not control or len(scored) != 1 or len({row.task for row in rows}) > 1:
        return ""
    (row,) = scored.values()
    cell = _gain(row, control)
    verdict = ", no significant difference" if cell.mark == "tied" else ""
    return f"{row.label} scores {cell.text} points over {CONTROL}, the control without attention{verdict} ({cell.note})"


def _gain(row: Row | None, control: Row) -> Cell:
    """Make a cell of a row's gain, with the collapsed seeds of both sides."""
    if row is None:
        return Cell()
    cell = gain(row.scores, control.scores)
    # A gain over a collapsed control is no gain over the mean of the values.
    collapsed = []
    if row.collapsed:
        collapsed.append(f"collapsed {len(row.collapsed)}/{row.n}")
    if control.collapsed:
        collapsed.append(f"collapsed {len(control.collapsed)}/{control.n} of the control")
    if not cell.text or not collapsed:
        return cell
    return replace(cell, text=f"{cell.text} ({', '.join(collapsed)})")


def over_tasks(rows: list[Row | None]) -> tuple[Cell, dict[int, float]]:
    """Average test scores over tasks.

    Args:
        rows: row of one mechanism on each task; None if it has no runs there.

    Returns:
        A cell, and the mean of each seed: none if a task is missing or the tasks have different seeds.
    """
    # The column of a single task shows the row itself.
    if len(rows) == 1 and rows[0]:
        return rows[0].cell, rows[0].scores
    if not all(row and row.scores for row in rows):
        return Cell(), {}

    # Average seed by seed if possible: only then the mean has a standard deviation.
    seed_numbers = rows[0].scores.keys()
    by_seed = {}
    if all(row.scores.keys() == seed_numbers for row in rows):
        by_seed = {seed: mean(row.scores[seed] for row in rows) for seed in seed_numbers}
        cell = score(by_seed)
    else:
        cell = Cell.of(mean(row.test for row in rows), note="the tasks have different seeds")

    num_collapsed = sum(len(row.collapsed) for row in rows)
    if num_collapsed:
        num_runs = sum(row.n for row in rows)
        cell = replace(cell, text=f"{cell.text} (collapsed {num_collapsed}/{num_runs})", collapsed=num_collapsed)
    return cell, by_seed


def keys(study: str, labels: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return the keys of rows without aliases, see ``frame``."""
    return [(study, label, "") for label in labels]
