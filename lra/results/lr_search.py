"""Learning-rate searches: runs whose label holds their learning rate, and the table of the best rates."""

from collections import defaultdict
from collections.abc import Iterable

from ..runs.reader import RATE
from .summary import Row
from .table import Cell, Table, TableRow, frame, number

HEAD = ("mechanism", "task", "at budget's rate", "at best rate", "best rate", "val at each rate")
# Key of the runs whose label has no learning rate.
BUDGET = "budget's"
# End of the study name of a search.
SEARCH_SUFFIX = "-rates"
# Study of the published board.
BOARD = "board"
BEST_RATE = (
    "the learning rate with the highest mean validation score, whatever the number of seeds (rates with failed seeds "
    "come last)"
)


def without_search(rows: list[Row]) -> list[Row]:
    """Leave out a trial of a learning-rate search if its mechanism also has runs at the budget's rate on the task."""
    labels_and_tasks = {(row.label, row.task) for row in rows}
    selected = []
    for row in rows:
        is_trial = RATE.search(row.label) is not None
        # A label without a rate was trained at the budget's.
        if not is_trial or (label_without_rate(row), row.task) not in labels_and_tasks:
            selected.append(row)
    return selected


def label_without_rate(row: Row) -> str:
    """Return the label of a row without its learning rate."""
    return RATE.sub("", row.label)


def trials(rows: Iterable[Row]) -> dict[tuple[str, str], dict[str, Row]]:
    """Group rows by mechanism and task, then by learning rate."""
    grouped: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        # A label without a rate was trained at the budget's.
        match = RATE.search(row.label)
        rate = match[1] if match else BUDGET
        by_rate = grouped[label_without_rate(row), row.task]
        by_rate[rate] = row
    return grouped


def rate_order(rate: str) -> float:
    """Sort key of a learning rate of ``trials``: the budget's first."""
    return 0.0 if rate == BUDGET else float(rate)


def best(rows: Iterable[Row]) -> Row | None:
    """Return the row with the highest mean validation score; None if no row has one.

    A row with failed seeds loses against every row without, because its mean leaves the failed seeds out.
    """
    scored = [row for row in rows if row.val is not None]
    return max(scored, key=lambda row: (not row.num_failed, row.val), default=None)


def lr_table(rows: list[Row]) -> Table | None:
    """Make the table of the best learning rates; None if no mechanism has several rates on a task."""
    study = rows[0].study
    keys = []
    lines: list[TableRow] = []
    for (label, task), by_rate in trials(rows).items():
        if len(by_rate) == 1:
            continue
        # The validation score chooses the rate; the test scores are shown.
        best_row = best(by_rate.values())
        best_rate = next((rate for rate, row in by_rate.items() if row is best_row), "")
        at_budget = by_rate[BUDGET].cell if BUDGET in by_rate else Cell()
        at_best = best_row.cell if best_row else Cell()
        keys.append((study, label, ""))
        # The page sorts rates as numbers: 3e-05 before 0.0001.
        rate_cell = Cell(text=best_rate, value=rate_order(best_rate) if best_rate else None)
        lines.append([label, task, at_budget, at_best, rate_cell, _scores_by_rate(by_rate)])
    if not lines:
        return None

    cells = frame(HEAD, lines, keys)
    searched = [by_rate for by_rate in trials(rows).values() if len(by_rate) > 1]
    if any(BUDGET in by_rate for by_rate in searched):
        about = (
            f"Test score at the budget's learning rate, and at {BEST_RATE}. Tables over all tasks show the budget's "
            "rate, tables of one task every rate."
        )
    else:
        about = f"Test score at {BEST_RATE}."
        cells = cells.drop(columns="at budget's rate")
    return Table(
        name=f"rates/{study}",
        title="Best learning rate",
        about=about,
        cells=cells,
        words=("mechanism", "task", "best rate", "val at each rate"),
    )


def _scores_by_rate(by_rate: dict[str, Row]) -> str:
    """Format the validation score of each rate: "0.001 40.00, 0.01 38.00 (collapsed 5/5)".

    The number of seeds is shown if it differs between rates. A score is the mean over the seeds that did not diverge.
    """
    seed_counts = {row.n for row in by_rate.values() if row.val is not None}
    parts = []
    for rate in sorted(by_rate, key=rate_order):
        row = by_rate[rate]
        part = f"{rate} {number(row.val)}"
        if len(seed_counts) > 1 and row.val is not None:
            part += f" (n = {row.n})"
        if row.num_failed and row.n:
            part += f" (diverged {row.num_failed}/{row.n + row.num_failed})"
        if row.collapsed:
            part += f" (collapsed {len(row.collapsed)}/{row.n})"
        parts.append(part)
    return ", ".join(parts)
