"""The table of the best of several learning rates, of runs that have theirs in their label."""

import re
from collections import defaultdict
from collections.abc import Iterable

from .summary import Row, number
from .table import Cell, Table, frame, stem

HEAD = ("mechanism", "task", "budget's rate", "best rate", "rate", "dev at each rate")
RATE = re.compile(r"-optim\.lr=(\d[\d.]*(?:e-?\d+)?)")
BUDGET = "budget's"  # of a label without a rate
RATES = "-rates"  # end of the name of the study of a search


def untuned(rows: list[Row]) -> list[Row]:
    """Leave out runs at another learning rate than the budget's, if the study has those at the budget's too."""
    at_budget = {(row.label, row.task) for row in rows}
    return [row for row in rows if not RATE.search(row.label) or (base(row), row.task) not in at_budget]


def base(row: Row) -> str:
    """The label of a row without its learning rate."""
    return RATE.sub("", row.label)


def tried(rows: list[Row]) -> dict[tuple[str, str], dict[str, Row]]:
    """Group rows by mechanism and task, then by learning rate."""
    found: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        match = RATE.search(row.label)
        found[base(row), row.task][match[1] if match else BUDGET] = row
    return found


def best(rows: Iterable[Row]) -> Row | None:
    """The row with the highest mean dev score; None if no row has one."""
    return max((row for row in rows if row.dev is not None), key=lambda row: row.dev, default=None)


def rates(rows: list[Row]) -> Table | None:
    """Make a line for each mechanism and task with several learning rates; None if the study has none."""
    study, lines = rows[0].study, []
    for (label, task), by_rate in tried(rows).items():
        if len(by_rate) == 1:
            continue
        differ = len({row.n for row in by_rate.values() if row.dev is not None}) > 1
        devs = ", ".join(
            f"{rate} {number(row.dev)}"
            + f" (n = {row.n})" * (differ and row.dev is not None)
            + f" (collapsed {len(row.collapsed)}/{row.n})" * bool(row.collapsed)
            for rate, row in sorted(by_rate.items(), key=lambda pair: 0.0 if pair[0] == BUDGET else float(pair[0]))
        )
        top = best(by_rate.values())
        rate = next((rate for rate, row in by_rate.items() if row is top), "")
        cells = [by_rate[at].cell if at in by_rate else Cell() for at in (BUDGET, rate)]
        lines.append([label, task, *cells, rate, devs])
    if not lines:
        return None
    cells = frame(HEAD, lines, [(study, label, "") for label, *_ in lines])
    if at_budget := any(not RATE.search(row.label) for row in rows):
        where = "at the learning rate of the budget, and at the one"
    else:
        where, cells = "at the learning rate", cells.drop(columns=HEAD[2])
    return Table(
        name=stem(f"rates-{study}"),
        title="Best learning rate",
        about=f"Test score {where} with the highest mean dev score among those tried, with their numbers of seeds n if "
        f"these differ.{' The tables of all tasks show the rate of the budget.' if at_budget else ''}",
        cells=cells,
        words=("mechanism", "task", "rate", "dev at each rate"),
    )
