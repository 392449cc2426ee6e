"""docs/results.md, docs/board_results.md, their figures, and the generated blocks of README.md and manuals."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..board import chapter as board
from ..board import costs
from ..board.results import BoardResults
from ..config import CONF
from ..evaluate import record as fresh_record
from ..io.atomic import write
from ..names import stem
from ..results import bench_record, figures
from ..results.figures import Picture
from ..results.lr_search import BOARD, SEARCH_SUFFIX
from ..results.score_cells import GAIN_MARKS
from ..results.summary import Row, collect
from ..results.table import Cell, Table, rounded
from ..runs import reader
from ..runs.published import HOME, About, about
from . import arena, export, extensions, overview, recurrent
from .plots import learning_curves, seed_points
from .pretraining import pretraining

# The generated block of a file goes between these lines.
BEGIN = "<!-- results: python -m lra.report published=true -->"
END = "<!-- end of results -->"
INTRO = f"""# {{title}}

This page is generated from the runs in `runs/published` by

```sh
python -m lra.report published=true
```

and a test fails if it differs from the records. The section of a study gives the command and the hardware of its runs.
`attn=mean` is the control without attention: every query gets the mean of the values.

{export.LEGEND} {GAIN_MARKS}"""


def pages(root: Path = CONF.parent, home: Path = HOME) -> tuple[dict[Path, str], dict[Path, Picture]]:
    """Render the files that show the runs of the repository, and compute the figures of its results.

    Args:
        root: folder of README.md and docs.
        home: folder of the runs.

    Returns:
        The texts and the figures by their paths.

    Raises:
        ValueError: there are no runs, a record is damaged, or a file lacks the lines of its generated block.
    """
    # Published runs must all be readable.
    studies, damaged = collect(home)
    if damaged:
        raise ValueError("; ".join(damaged))
    # The tables of details would leave out damaged fresh tests without a message; this raises.
    for name in studies:
        fresh_record.read_table(home / name)
    benchmarks = []
    cost_file = home / BOARD / costs.FILE
    if cost_file.is_file():
        benchmarks.append(bench_record.load(cost_file))
    boards = board.boards(studies, benchmarks)

    # The Arena comes first; in the README its pictures precede its tables. The board's studies have another page.
    docs = root / "docs"
    sections = [INTRO.format(title="Results of this repository"), arena.section(studies)]
    board_sections = [INTRO.format(title="Results of the board")]
    readme_blocks = []
    all_pictures = {}
    for picture in arena.pictures(studies):
        file_name = _file_name(picture)
        all_pictures[docs / file_name] = picture
        subject = picture.caption.partition(";")[0]
        sentence = f"{picture.caption[0].upper()}{picture.caption[1:]}."
        readme_blocks.append(f"![{subject}](docs/{file_name})\n\n{sentence}")
    readme_blocks.append(arena.readme(studies))
    # A section for each study, and the studies that the README shows.
    for name, rows in studies.items():
        info = about(home / name)
        pictures = {}
        for picture in _pictures(rows, info, boards):
            file_name = _file_name(picture)
            pictures[file_name] = picture
            all_pictures[docs / file_name] = picture
        page = board_sections if name.split("-")[0] == BOARD else sections
        page.append(_section(rows, info, boards, pictures))
        readme_rows = [row for row in rows if row.task in info.readme]
        if readme_rows:
            readme_blocks.append(_readme_block(readme_rows, boards))

    # Pages that are generated as a whole, then generated blocks of pages.
    texts = {docs / "results.md": _paragraphs(sections) + "\n"}
    if len(board_sections) > 1:
        texts[docs / "board_results.md"] = _paragraphs(board_sections) + "\n"
    readme = root / "README.md"
    texts[readme] = _with_block(readme, _paragraphs(readme_blocks))
    board_page = docs / "board.md"
    if board_page.exists():
        texts[board_page] = _with_block(board_page, _board_block(boards))
    recurrent_page = docs / "recurrent.md"
    if recurrent_page.exists():
        texts[recurrent_page] = _with_block(recurrent_page, recurrent.render(studies))
    return texts, all_pictures


def _paragraphs(texts: Iterable[str]) -> str:
    """Join texts with empty lines between them; empty texts are left out."""
    return "\n\n".join(filter(None, texts))


def _file_name(picture: Picture) -> str:
    return f"results-{stem(picture.name)}.svg"


def _with_block(path: Path, block: str) -> str:
    """Return the text of a file with another generated block.

    Raises:
        ValueError: the file lacks the lines around the block.
    """
    before, begin, remainder = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = remainder.partition(END)
    if not begin or not end:
        raise ValueError(f"{path.name} must have the lines {BEGIN} and {END}, between which the table goes")
    return f"{before}{begin}\n{block}\n{end}{after}"


def _pictures(rows: list[Row], info: About, boards: Mapping[str, BoardResults]) -> list[Picture]:
    """List the figures of a study.

    A board has its own pictures, and with its search also the seeds and the learning rates. Every study except a search
    has learning curves, unless it has a single mechanism on one task, since there is nothing to compare.

    A study with too many curves for one chart names the mechanisms of its figure in ``about.json``.
    """
    name = rows[0].study
    board_name = name.removesuffix(SEARCH_SUFFIX)
    is_search = name != board_name
    pictures = []
    if name in boards:
        pictures += board.pictures(boards[name])
    if not is_search and len(rows) > 1:
        pictures.append(_curves(rows, info))
    if board_name in boards:
        pictures += seed_points.pictures(rows)
    return [picture for picture in pictures if picture.panels]


def _curves(rows: list[Row], info: About) -> Picture:
    """Make the figure of the learning curves of a study."""
    name = rows[0].study
    # Some studies have more mechanisms than a chart can show.
    selection = ""
    if info.figure:
        rows = [row for row in rows if row.label in info.figure]
        selection = ", of some mechanisms"
    runs = {}
    for row in rows:
        for folder in row.runs:
            runs[folder] = reader.read_curves(folder)
    caption = f"validation scores of {name} over steps{selection}, mean ± sample standard deviation over seeds"
    panels = learning_curves.by_task(rows, runs)
    return Picture(name, caption, learning_curves.draw_figure, panels)


def about_figure(panels: Mapping[str, list]) -> str:
    """Render the numbers of a figure as the description in its file, by which a test compares it with the records.

    They have eight significant digits: further ones depend on the version of Python, since 3.12 adds more exactly.
    """
    numbers = {}
    for task, content in panels.items():
        numbers[task] = [_round(item._asdict()) for item in content]
    return json.dumps(numbers)


def _round(value: Any) -> Any:
    """Round every float in nested lists and dictionaries to eight significant digits."""
    if isinstance(value, float):
        return rounded(value)
    if isinstance(value, list | tuple):
        return [_round(item) for item in value]
    if isinstance(value, dict):
        return {key: _round(item) for key, item in value.items()}
    return value


def save() -> list[Path]:
    """Write the files of ``pages``, and return their paths.

    Raises:
        ValueError: as ``pages`` does.
        OSError: a file cannot be written.
    """
    texts, all_pictures = pages()
    for path, text in texts.items():
        write(path, text)
    for path, picture in all_pictures.items():
        figure = picture.draw(picture.panels, figures.TEXT_WIDTH)
        figures.write(figure, path.with_suffix(""), ["svg"], about_figure(picture.panels))
    return [*texts, *all_pictures]


def _readme_block(rows: list[Row], boards: Mapping[str, BoardResults]) -> str:
    """Render a study for the README: a board as its picture and its short table, other studies as a table."""
    name = rows[0].study
    if name in boards:
        board_results = replace(boards[name], rows=rows)
        return _short_board(board_results, "docs/")
    table = overview.score_table(rows)
    return f"{table.about}\n\n{table.markdown()}"


def _board_block(boards: Mapping[str, BoardResults]) -> str:
    """Render the boards with results for docs/board.md."""
    with_rows = [board_results for board_results in boards.values() if board_results.rows]
    return _paragraphs(_short_board(board_results, "") for board_results in with_rows)


def _short_board(board_results: BoardResults, folder: str) -> str:
    """Render a board as its picture and its short table.

    Args:
        board_results: the board.
        folder: folder of the picture, relative to the page.
    """
    # The picture, unless no mechanism was timed.
    parts = []
    picture = costs.picture(board_results)
    if picture:
        parts.append(f"![{picture.caption}]({folder}{_file_name(picture)})")
        left_out = costs.not_timed(board_results)
        if left_out:
            parts.append(f"Missing from the picture because no benchmark timed them: {', '.join(left_out)}.")
    table = board.short_table(board_results)
    return _paragraphs([*parts, table.about, table.markdown()])


def _section(rows: list[Row], info: About, boards: Mapping[str, BoardResults], pictures: Mapping[str, Picture]) -> str:
    """Render a study: notes, hardware, command, figures and tables."""
    notes = [f"* {note}" for note in info.notes]
    parts = [
        f"## Study {rows[0].study}",
        "\n".join(notes),
        f"Hardware: {info.hardware}.",
        f"```text\n{info.command}\n```",
    ]
    # Figures, then tables.
    parts += [f"![{picture.caption}]({file})" for file, picture in pictures.items()]
    for table in _tables(rows, boards):
        # A single table with the title of the study needs no second heading.
        parts += [table.about, table.markdown()] if table.title == rows[0].study else [table.section()]
    return _paragraphs(parts)


def _tables(rows: list[Row], boards: Mapping[str, BoardResults]) -> list[Table]:
    """List the tables of a study."""
    name = rows[0].study
    board_results = boards.get(name.removesuffix(SEARCH_SUFFIX))
    if board_results:
        # The tables of a board hold its search too; a search alone shows which tasks are admitted.
        if board_results.rows and name != board_results.name:
            return []
        return board.tables(board_results) + extensions.tables(rows)
    compared = pretraining(rows)
    if compared:
        return [compared]

    # A study of several tasks has an overview and the details of each task, a learning-rate search one table alone.
    (scores, *further), details = export.tables(rows)
    if len(details) != 1:
        return [scores, *further, *details]
    # With a single task its details contain the scores, and the gains become a column.
    gains = overview.over_control(rows)
    if gains:
        others = [table for table in further if table.name != gains.name]
        return [_with_gains(details[0], gains), *others]
    return [*details, *further]


def _with_gains(table: Table, gains: Table) -> Table:
    """Add the gains over the control to the table of a task."""
    # Every column of gains except the mechanism is a task, here a single one, and has a standard error.
    (task,) = gains.errors
    column = gains.cells[task]
    # The gain stands next to the test score; the control has none.
    cells = table.cells.copy()
    gain_cells = [column.get(key, Cell()) for key in cells.index]
    cells.insert(2, "gain", gain_cells)
    # One sentence for all columns, then the caution of the table.
    facts, _, caution = table.about.partition(". ")
    explanation = f"{facts.removesuffix('.')}; gain: test score minus the score of attn=mean, ± standard error."
    return replace(table, cells=cells, about=f"{explanation} {caution}".rstrip(), errors=("gain", *table.errors))
