"""The chapter of the report on a board: its tasks and its mechanisms."""

from collections.abc import Sequence
from pathlib import Path

from ..runs.bench_record import BenchRecord
from ..runs.published import HOME
from . import board_picture, figures
from .admission import admission_table
from .agreement import agreement_table
from .figures import TEXT
from .palette import CONTROL, family
from .rates import RATES
from .standings import BoardResults, plateau_table, standing_table, with_interval
from .statistics import mean_over_tasks
from .summary import Row
from .table import Cell, Chapter, Table, stem

STUDY = "board"
COSTS = "costs.json"  # in the folder of a published board: a record of lra.bench
SHORT = (
    "Exact attention, the best mechanism of each family so far, and controls, if they have runs on every task. score: "
    "the share of the way from floor to 100, in percent, mean over tasks and seeds, with a 95 % bootstrap interval; "
    "IQM: the interquartile mean of the same runs, which leaves out the lowest quarter of them; tasks: mean ± sample "
    "standard deviation; solved: runs that went 90 % of the way. ms: "
)
ABOUT = "Small tasks that need mixing of tokens, each mechanism at its own best rate."


def published() -> list[Path]:
    """List the folders of the published board. Raises ValueError if this installation has none."""
    found = [path for name in (STUDY, f"{STUDY}{RATES}") if (path := HOME / name).is_dir()]
    if not found:
        raise ValueError(f"board=true needs the runs of the published board, and {HOME} does not have them")
    return found


def is_published(rows: list[Row]) -> bool:
    """Whether all rows are of published runs only."""
    return all(HOME in folder.parents for row in rows for folder in row.runs)


def boards(studies: dict[str, list[Row]], measured: Sequence[BenchRecord]) -> dict[str, BoardResults]:
    """Find the boards among studies: each search over rates, with the seeds at the chosen rates.

    Args:
        studies: their rows by name.
        measured: benchmarks, for the costs.
    """
    names = [name.removesuffix(RATES) for name in studies if name.endswith(RATES)]
    return {name: BoardResults(name, studies.get(name, []), studies[f"{name}{RATES}"], measured) for name in names}


def chapters(
    studies: dict[str, list[Row]], measured: Sequence[BenchRecord], folder: Path, width: float = TEXT
) -> list[Chapter]:
    """Make a chapter of each board among studies.

    Args:
        studies: their rows by name.
        measured: benchmarks, for the costs.
        folder: folder of the pictures.
        width: width of the pictures in inches.
    """
    made = []
    for name, board in boards(studies, measured).items():
        drawn = [one._replace(name=one.name.removesuffix("-scores")) for one in board_picture.pictures(board)]
        pictures = figures.save(drawn, folder, width)
        made.append(Chapter("Board" if name == STUDY else f"Board {name}", ABOUT, tables(board), pictures))
    return made


def short(board: BoardResults) -> Table:
    """Make the table of a board for the README: exact attention, the best mechanism of each family, and controls."""
    best: dict[str, str] = {}  # the first of each family
    for label in board.complete:
        best.setdefault(label if family(label) == CONTROL else family(label), label)
    cells = standing_table(board).cells
    cells = cells[cells.index.isin(best.values(), level="label")].iloc[:, :-3]
    ms, axis = board_picture.costs(board)
    cells = cells.assign(ms=[Cell.of(ms.get(label), "{:.1f}".format) for _, label, _ in cells.index])
    selections = {label: shares for label, shares in board.complete.items() if family(label) == family("cur")}
    listed = ", ".join(f"`{k}` {with_interval(v, mean_over_tasks).text}" for k, v in selections.items())
    about = f"{SHORT}{axis.removeprefix('ms, ')}." + f" Scores of CUR by its selection: {listed}." * bool(listed)
    return Table(name=stem(f"{board.name}-short"), title=board.name, about=about, cells=cells)


def tables(board: BoardResults) -> list[Table]:
    """Make the tables of a board: its tasks and, if seeds at the chosen rates are there, those of its mechanisms."""
    made = (standing_table, plateau_table, agreement_table) if board.rows else ()
    return [table for table in (admission_table(board), *(make(board) for make in made)) if table]
