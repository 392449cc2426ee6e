"""The chapter of the report on a board: its tasks and its mechanisms."""

from collections.abc import Sequence
from pathlib import Path

from ..runs.bench_record import BenchRecord
from ..runs.tables import HOME
from . import board_picture
from .admission import admission_table
from .agreement import agreement_table
from .figures import TEXT
from .rates import RATES
from .standings import standing_table, standings
from .summary import Row
from .table import Chapter, Table, stem

STUDY = "board"
ABOUT = "Small tasks that need mixing of tokens, each mechanism at its own best rate."


def published() -> list[Path]:
    """List the folders of the published board. Raises ValueError if this installation has none."""
    found = [path for name in (STUDY, f"{STUDY}{RATES}") if (path := HOME / name).is_dir()]
    if not found:
        raise ValueError(f"board=true needs the runs of the published board, and {HOME} does not have them")
    return found


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
        rows, pictures = studies.get(name, []), ()
        if rows:
            pictures = (board_picture.save(standings(rows), rows, measured, folder / stem(name), width),)
        made.append(Chapter(f"Board {name}", ABOUT, tables(name, studies), pictures))
    return made


def tables(name: str, studies: dict[str, list[Row]]) -> list[Table]:
    """Make the tables of a board: its tasks and, if seeds at the chosen rates are there, its mechanisms.

    Args:
        name: name of the board.
        studies: the rows of each study.
    """
    rows = studies.get(name, [])
    made = [admission_table(name, rows, studies[f"{name}{RATES}"])]
    return made + list(filter(None, (standing_table(name, rows), agreement_table(name, rows)))) if rows else made
