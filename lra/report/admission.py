"""The admission of the tasks of a study of ``sweep=board``: whether a task measures mixing of tokens."""

from dataclasses import replace

import numpy as np

from .rates import best, tried
from .standings import CONTROLS, EXACT, NEAR, BoardResults, floor, percent, shares
from .statistics import SOLVED, normalised
from .summary import Row
from .table import Cell, Table, frame, stem

LEAD = 15  # points between exact attention and the best control, for a task that is not solved
CEILING, WITHIN = 100, 2  # points below the ceiling at which a task is saturated
SATURATED = 1 / 3  # share of the mechanisms that may be there
LED = "listops"  # the task that nothing solves within minutes, hence admitted by the lead
ADMISSION = (
    "Shares of the way from floor to 100 in percent. A task is admitted if the controls and the classifier on counts "
    f"of tokens (bag) stay within {NEAR:.0%} of the way, {EXACT} goes {SOLVED:.0%} of it with each seed, and at most a "
    f"third of the mechanisms end within {WITHIN} points of 100. On {LED}, which nothing solves within minutes, "
    f"{EXACT} has to lead the best control and the bag by {LEAD} points instead. (rates): the best rate of the search, "
    "n = 1, since the seeds are not finished."
)


def admission_table(board: BoardResults) -> Table:
    """Make the table that says for each task of a board whether it measures mixing."""
    searches, lines = tried(board.search), []
    for task in dict.fromkeys(row.task for row in [*board.search, *board.rows]):
        chosen = {row.label: row for row in board.rows if row.task == task}
        searched = {label: best(by_rate.values()) for (label, on), by_rate in searches.items() if on == task}
        both = {label: row for label, row in searched.items() if row}
        both |= {label: row for label, row in chosen.items() if len(row.scores) + row.lost > 1}
        exact, low = both.get(EXACT), next((floor(row) for row in both.values()), None)
        bag = next((r.bag for row in both.values() for r in row.runs.values() if r.bag is not None), None)
        at_top = sum(row.test is not None and row.test >= CEILING - WITHIN for row in both.values())
        lines.append(
            [
                task,
                Cell.of(low),
                *(_share(both.get(name), name in chosen) for name in CONTROLS),
                Cell.of(None) if bag is None else percent(np.array([normalised(bag, low)])),
                _share(exact, EXACT in chosen),
                f"{(shares(exact) >= SOLVED).sum()}/{len(shares(exact))}" if exact else "-",
                Cell(text=f"{at_top}/{len(both)}", value=at_top / max(len(both), 1)),
                _decision(task, both, bag, low, at_top),
            ]
        )
    head = ("task", "floor", *CONTROLS, "bag", EXACT, f"{EXACT} solved", f"within {WITHIN} of 100", "admitted")
    return Table(
        name=stem(f"admission-{board.name}"),
        title=f"{board.name}: tasks",
        about=ADMISSION,
        cells=frame(head, lines),
        words=("task", "admitted"),
    )


def _decision(task: str, rows: dict[str, Row], bag: float | None, low: float, at_top: int) -> str:
    """Say "yes", "no" with the reasons, or what is lacking."""
    controls, exact = {name: rows[name] for name in CONTROLS if name in rows}, rows.get(EXACT)
    lacking = ", ".join(name for name in (*CONTROLS, EXACT) if name not in rows)
    if exact is None:
        return f"open: {lacking} not run"
    near = {name: float(shares(row).mean()) for name, row in controls.items()}
    near |= {"bag": normalised(bag, low)} if bag is not None else {}
    reasons = []
    if task == LED:
        score = lambda row: low if row.test is None else row.test  # as of seeds that diverged
        lead = score(exact) - max([*map(score, controls.values()), bag or low])
        reasons += [f"{EXACT} leads by {lead:.1f} points"] * (lead < LEAD)
    else:
        reasons += [f"{name} at {share:.0%}" for name, share in near.items() if share > NEAR]
        unsolved = int((shares(exact) < SOLVED).sum())
        reasons += [f"{EXACT} below {SOLVED:.0%} with {unsolved} of {len(shares(exact))} seeds"] * (unsolved > 0)
    if lacking and not reasons:
        return f"open: {lacking} not run"
    ceiling = at_top / len(rows)
    reasons += [f"{ceiling:.0%} of the mechanisms at the ceiling"] * (ceiling > SATURATED)
    return f"no: {', '.join(reasons)}" if reasons else "yes"


def _share(row: Row | None, chosen: bool) -> Cell:
    if row is None:
        return Cell.of(None)
    made = percent(shares(row))
    return made if chosen else replace(made, text=f"{made.text} (rates)", std=None)
