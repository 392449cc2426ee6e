"""The chapter of the report on a board: its tasks and its mechanisms."""

from collections.abc import Sequence
from pathlib import Path

from ..runs import bench_record
from ..runs.bench_record import BenchRecord
from ..runs.tables import HOME
from . import board_picture, figures
from .admission import admission_table
from .agreement import agreement_table
from .figures import TEXT
from .palette import CONTROL, family
from .rates import RATES
from .standings import plateau_table, standing_table
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


def chapters(
    studies: dict[str, list[Row]], measured: Sequence[BenchRecord], folder: Path, width: float = TEXT
) -> list[Chapter]:
    """Make a chapter of each board among studies: of each search over rates, with the seeds at the chosen rates.

    Args:
        studies: their rows by name.
        measured: benchmarks, for the costs.
        folder: folder of the pictures.
        width: width of the pictures in inches.
    """
    made = []
    for name in (name.removesuffix(RATES) for name in studies if name.endswith(RATES)):
        pictures = []
        for picture in board_picture.pictures(name, studies.get(name, []), measured):
            folder.mkdir(parents=True, exist_ok=True)
            file = folder / stem(picture.name.removesuffix("-scores"))
            pictures.append(figures.write(picture.draw(picture.panels, width), file))
        made.append(Chapter("Board" if name == STUDY else f"Board {name}", ABOUT, tables(name, studies), pictures))
    return made


def published_costs(home: Path = HOME) -> list[BenchRecord]:
    """Read the benchmark that is published with the board, if there is one.

    Args:
        home: folder of the published runs.

    Raises:
        ValueError: it is damaged.
    """
    path = home / STUDY / COSTS
    return [bench_record.load(path)] if path.is_file() else []


def short(name: str, rows: list[Row], measured: Sequence[BenchRecord]) -> Table:
    """Make the table of a board for the README: exact attention, the best mechanism of each family, and controls.

    Args:
        name: name of the board.
        rows: its results at the chosen rates.
        measured: benchmarks, for the costs.
    """
    whole = standing_table(name, rows).cells
    whole = whole[[cell.value is not None for cell in whole["score"]]]
    ms, axis = board_picture.costs(rows, measured)
    best: dict[str, str] = {}  # the table has the best first
    for _, label, _ in whole.index:
        best.setdefault(label if family(label) == CONTROL else family(label), label)
    cells = whole[[label in best.values() for _, label, _ in whole.index]].drop(columns=whole.columns[-3:])
    cells = cells.assign(ms=[Cell.of(ms.get(label), "{:.1f}".format) for _, label, _ in cells.index])
    return Table(name=stem(f"{name}-short"), title=name, about=f"{SHORT}{axis.removeprefix('ms, ')}.", cells=cells)


def tables(name: str, studies: dict[str, list[Row]]) -> list[Table]:
    """Make the tables of a board: its tasks and, if seeds at the chosen rates are there, those of its mechanisms.

    Args:
        name: name of the board.
        studies: the rows of each study.
    """
    rows = studies.get(name, [])
    made = [admission_table(name, rows, studies[f"{name}{RATES}"])]
    if rows:
        made += [standing_table(name, rows), plateau_table(name, rows), agreement_table(name, rows)]
    return list(filter(None, made))
