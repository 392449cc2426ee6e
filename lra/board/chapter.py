"""The board in the report: which studies are boards, their chapter, tables and pictures."""

from collections.abc import Sequence
from pathlib import Path

from ..results import figures
from ..results.bench_record import BenchRecord
from ..results.figures import TEXT_WIDTH, Picture
from ..results.lr_search import BOARD, SEARCH_SUFFIX
from ..results.palette import CONTROL_FAMILY, family
from ..results.statistics import SOLVED
from ..results.summary import Row, Studies
from ..results.table import Cell, Chapter, Table
from ..runs.published import HOME
from . import agreement
from .admission import admission_table
from .costs import costs, not_timed
from .costs import picture as cost_picture
from .results import BoardResults, mean_cell, plateau_table, ranking_table

ABOUT = "Small tasks that need mixing of tokens, each mechanism at its own best learning rate."
# Searches that are not boards: docs/recurrent.md has the table of this one.
NO_BOARDS = ("recurrent",)
# Columns of the ranking that the short table leaves out: collapsed seeds and both p-values.
NUM_OMITTED = 3


def published() -> list[Path]:
    """List the folders of the published board.

    Raises:
        ValueError: this installation has none.
    """
    folders = [HOME / name for name in (BOARD, f"{BOARD}{SEARCH_SUFFIX}")]
    folders = [folder for folder in folders if folder.is_dir()]
    if not folders:
        raise ValueError(f"board=true needs the runs of the published board, and {HOME} does not have them")
    return folders


def is_published(rows: list[Row]) -> bool:
    """Whether all runs of the rows are published ones."""
    return all(HOME in folder.parents for row in rows for folder in row.runs)


def boards(studies: Studies, measured: Sequence[BenchRecord]) -> dict[str, BoardResults]:
    """Find the boards among studies: each learning-rate search with the seeds at the chosen rates.

    Args:
        studies: rows of each study by name.
        measured: benchmarks, for the costs.
    """
    found_boards = {}
    for search_name, search in studies.items():
        name = search_name.removesuffix(SEARCH_SUFFIX)
        # The protocol and the budget may follow the name of a sweep.
        if search_name.endswith(SEARCH_SUFFIX) and name.partition("-")[0] not in NO_BOARDS:
            # Until the first seed at a chosen rate has finished, there is a search without rows.
            found_boards[name] = BoardResults(name, studies.get(name, []), search, measured)
    return found_boards


def chapters(
    studies: Studies,
    measured: Sequence[BenchRecord],
    folder: Path,
    width: float = TEXT_WIDTH,
) -> list[Chapter]:
    """Make a chapter of each board among studies.

    Args:
        studies: rows of each study by name.
        measured: benchmarks, for the costs.
        folder: folder of the pictures.
        width: width of the pictures in inches.
    """
    board_chapters = []
    for name, board in boards(studies, measured).items():
        files = figures.save(pictures(board), folder, width)
        title = "Board" if name == BOARD else f"Board {name}"
        about = ABOUT
        left_out = not_timed(board)
        if cost_picture(board) and left_out:
            about += f" Missing from the picture because they were not timed with the others: {', '.join(left_out)}."
        board_chapters.append(Chapter(title, about, tables(board), files))
    return board_chapters


def pictures(board: BoardResults) -> list[Picture]:
    """List the pictures of a board."""
    candidates = (cost_picture(board), agreement.picture(board))
    return [picture for picture in candidates if picture]


def tables(board: BoardResults) -> list[Table]:
    """Make the tables of a board: its tasks and, once seeds at the chosen rates are finished, its mechanisms."""
    if not board.rows:
        return [admission_table(board)]
    # Tables without enough runs are left out.
    all_tables = (admission_table(board), ranking_table(board), plateau_table(board), agreement.agreement_table(board))
    return [table for table in all_tables if table]


def short_table(board: BoardResults) -> Table:
    """Make the table of the best mechanism of each family and of the controls, with their cost."""
    # The order is by score, so the first mechanism of a family is its best one.
    representatives: dict[str, str] = {}
    for label in board.complete:
        kind = family(label)
        # Every control represents itself.
        key = label if kind == CONTROL_FAMILY else kind
        representatives.setdefault(key, label)

    cells = ranking_table(board).cells
    is_representative = cells.index.isin(representatives.values(), level="label")
    cells = cells[is_representative].iloc[:, :-NUM_OMITTED]

    ms, axis = costs(board)
    cost_cells = [Cell.of(ms.get(label), "{:.1f}".format) for _, label, _ in cells.index]
    return Table(
        name=f"{board.name}/short",
        title=board.name,
        about=_short_caption(board, axis),
        cells=cells.assign(ms=cost_cells),
    )


def _short_caption(board: BoardResults, axis: str) -> str:
    """Explain the columns, and list the scores of CUR by selection.

    ``axis`` begins with the unit, "ms, forward and backward of ...", and becomes "ms: forward and backward of ...".
    """
    caption = (
        "Normalised scores (chance = 0, perfect = 100) of the best mechanism of each family and of every control. "
        "score: mean with a 95 % t interval. IQM: interquartile mean with a 95 % bootstrap interval, which is too "
        "narrow with few seeds. Tasks: mean ± standard deviation. "
        f"solved: runs (seeds of all tasks) that score at least {100 * SOLVED:.0f}. {axis.replace(', ', ': ', 1)}."
    )
    # CUR has one mechanism per rule of selection, and only the best one has a row.
    selections = []
    for label, scores in board.complete.items():
        if family(label) == family("cur"):
            selections.append(f"`{label}` {mean_cell(scores).text}")
    if selections:
        caption += f" CUR by selection: {', '.join(selections)}."
    return caption
