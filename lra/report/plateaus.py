"""The table of the steps after which the runs of a board leave the plateau at their task's floor."""

from statistics import median

from ..runs import open as runs_on_disk
from .admission import NEAR
from .standings import floor, standings
from .statistics import normalised
from .summary import Row
from .table import Cell, Table, frame, stem

ABOUT = (
    f"Step of the first evaluation whose dev score is {NEAR:.0%} of the way from floor to 100, median over the seeds "
    "that get there; (k/n): k of n seeds do, if not all. Each mechanism at its own best rate. A mechanism that leaves "
    "late may solve the task with a longer training; one without a number shows what this number of steps allows."
)


def plateau_table(study: str, rows: list[Row]) -> Table | None:
    """Make a line for each mechanism; None if no run left the plateau.

    Args:
        study: name of the board.
        rows: its results at the chosen rates.
    """
    found: dict[tuple[str, str], Cell] = {}
    steps: dict[str, int] = {}  # of the trainings of each task
    for row in rows:
        if floor(row) is not None and row.runs:
            found[row.label, row.task] = _cell(leaving(row))
            steps[row.task] = max([steps.get(row.task, 0), *(record.steps for record in row.runs.values())])
    labels = [standing.label for standing in standings(rows)]
    if not any(cell.value for cell in found.values()):
        return None
    return Table(
        name=stem(f"plateaus-{study}"),
        title=f"{study}: steps until the plateau is left",
        about=ABOUT,
        cells=frame(
            ("mechanism", *(f"{task}, of {most:,}" for task, most in steps.items())),
            [[label, *(found.get((label, task), Cell.of(None)) for task in steps)] for label in labels],
            [(study, label, "") for label in labels],
        ),
    )


def leaving(row: Row) -> list[int | None]:
    """Find for each run of a row the step at which it left the plateau; None for one that never did."""
    steps = []
    for folder, record in row.runs.items():
        try:
            dev = runs_on_disk.curves(folder).get("val", {})
        except ValueError:  # the report names the damaged file
            dev = {}
        steps.append(next((step for step, score in dev.items() if normalised(score, record.floor) >= NEAR), None))
    return steps


def _cell(steps: list[int | None]) -> Cell:
    left, n = [step for step in steps if step is not None], len(steps)
    some = f" ({len(left)}/{n})" if len(left) < n else ""
    return Cell(text=f"{median(left):,.0f}{some}" if left else f"-{some}", value=median(left) if left else None, n=n)
