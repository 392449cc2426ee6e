"""The training steps after which the mechanisms of a board leave the plateau at chance level."""

from contextlib import suppress
from statistics import median

from ..results.statistics import normalised
from ..results.summary import Row
from ..results.table import Cell, Table, frame
from ..runs import reader
from .results import BoardResults

# A run has left the plateau from this normalised validation score on.
PLATEAU = 0.2
ABOUT = (
    f"Step of the first evaluation with a normalised validation score of at least {100 * PLATEAU:.0f}, median over the "
    "seeds that reach it; (k/n): k of n seeds do. Mechanisms that never do are left out: a longer training may "
    "help them."
)


def plateau_table(board: BoardResults) -> Table | None:
    """Make a row for each mechanism that left the plateau of a task; None if no run did."""
    cells = {(row.label, row.task): _plateau_cell(row) for row in board.rows}
    left_plateau = {label for (label, _), cell in cells.items() if cell.value}
    labels = [label for label in board.scores if label in left_plateau]
    if not labels:
        return None

    head = ["mechanism"]
    for task in board.tasks:
        steps = [r.steps for row in board.rows if row.task == task for r in row.runs.values()]
        head.append(f"{task}, of {max(steps):,}")
    lines: list[list[Cell | str]] = []
    for label in labels:
        row_cells = [cells.get((label, task), Cell.of(None)) for task in board.tasks]
        lines.append([label, *row_cells])
    return Table(
        name=f"plateaus/{board.name}",
        title=f"{board.name}: steps until the plateau is left",
        about=ABOUT,
        cells=frame(head, lines, [(board.name, label, "") for label in labels]),
    )


def _plateau_cell(row: Row) -> Cell:
    """Make a cell of the median step at which the seeds of a row leave the plateau."""
    steps = []
    for folder in row.runs:
        # The report already lists a damaged file.
        with suppress(ValueError):
            curve = reader.read_curves(folder).get("val", {})
            steps += [step for step, score in curve.items() if normalised(score, row.chance) >= PLATEAU][:1]

    num_seeds = len(row.runs)
    count = f" ({len(steps)}/{num_seeds})" if len(steps) < num_seeds else ""
    if not steps:
        return Cell(text=f"-{count}", n=num_seeds)
    step = median(steps)
    return Cell(text=f"{step:,.0f}{count}", value=step, n=num_seeds)
