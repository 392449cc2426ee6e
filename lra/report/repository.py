"""docs/results.md, its figures and the table of README.md, made from the runs in runs/published."""

import json
from dataclasses import replace
from pathlib import Path

from ..config import CONF
from ..disk.atomic import write
from ..runs import bench_record, reader
from ..runs.published import HOME, About, about
from . import arena, board, board_picture, export, extensions, figures, plots, results, strips
from .figures import Picture
from .pretraining import pretraining
from .rates import RATES
from .standings import BoardResults
from .summary import Row, collect
from .table import Cell, Table

BEGIN, END = "<!-- results: python -m lra.report published=true -->", "<!-- end of results -->"
INTRO = """# Results of this repository

Runs of the suite itself, made by the commands that stand below and kept in `runs/published`. This page and the table in
the README are written by

```sh
python -m lra.report published=true
```

and a test fails if they differ from the records. `attn=mean` is a control: every query gets the mean of the values,
whatever the query.

The results of adding, recall and temporal order, of pretraining, and of further mechanisms on quick ListOps were
removed: that board measured heads whose ReLU units no row activates, one learning rate for all mechanisms, and tasks
that need no mixing of tokens. It is built again as `sweep=board`."""


def pages(root: Path = CONF.parent, home: Path = HOME) -> tuple[dict[Path, str], dict[Path, Picture]]:
    """Render the files that show the runs of the repository, and compute the figures that docs/results.md shows.

    Args:
        root: folder of README.md and docs.
        home: folder of the runs.

    Returns:
        The texts and the figures by their paths.

    Raises:
        ValueError: there are no runs, a record is damaged, or README.md lacks the marks between which the table goes.
    """
    studies, damaged = collect(home)
    if damaged:
        raise ValueError("; ".join(damaged))
    readme, docs = root / "README.md", root / "docs"
    before, begin, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"README.md must have the lines {BEGIN} and {END}, between which the table goes")
    costs = home / board.STUDY / board.COSTS
    boards = board.boards(studies, [bench_record.load(costs)] if costs.is_file() else [])
    # The Arena's own table comes first in both files.
    short = [text for text in [arena.readme(studies)] if text]
    sections = [text for text in [INTRO, arena.section(studies)] if text]
    drawn = {}
    for name, rows in studies.items():
        says = about(home / name)
        pictures = {f"results-{picture.name}.svg": picture for picture in _pictures(rows, says, boards)}
        drawn |= {docs / file: picture for file, picture in pictures.items()}
        sections.append(_section(rows, says, boards, pictures))
        if shown := [row for row in rows if row.task in says.readme]:
            short.append(_short(shown, boards, pictures))
    page = "\n\n".join([*sections, export.LEGEND]) + "\n"
    table = "\n\n".join(short)
    return {docs / "results.md": page, readme: f"{before}{begin}\n{table}\n{end}{after}"}, drawn


def _pictures(rows: list[Row], says: About, boards: dict[str, BoardResults]) -> list[Picture]:
    """List the figures of a study: dev scores over steps, but of a search.

    A board has its scores over costs first, then also test scores of seeds, and rates. A study with more curves than
    can be told apart names the mechanisms of its figure of dev scores in ``about.json``.
    """
    name = rows[0].study
    made = strips.pictures(rows) if name.removesuffix(RATES) in boards else []
    if not name.endswith(RATES):
        rows = [row for row in rows if not says.figure or row.label in says.figure]
        runs = {folder: reader.read_curves(folder) for row in rows for folder in row.runs}
        some = ", of some mechanisms" if says.figure else ""
        caption = f"dev scores of {name} over steps{some}, mean ± sample standard deviation over seeds"
        made.insert(0, Picture(name, caption, strips.draw_curves, plots.by_task(rows, runs)))
    if name in boards:
        made = board_picture.pictures(boards[name]) + made
    return [picture for picture in made if picture.panels]


def about_figure(panels: dict[str, list]) -> str:
    """Render the numbers of a figure as the description in its file, by which it is compared with the records."""
    return json.dumps({task: [item._asdict() for item in content] for task, content in panels.items()})


def save() -> list[Path]:
    """Write the files. Raises ValueError as ``pages`` does, OSError if one cannot be written."""
    texts, drawn = pages()
    for path, text in texts.items():
        write(path, text)
    for path, picture in drawn.items():
        about = about_figure(picture.panels)
        figures.write(picture.draw(picture.panels, figures.TEXT), path.with_suffix(""), ["svg"], about)
    return [*texts, *drawn]


def _short(rows: list[Row], boards: dict[str, BoardResults], pictures: dict[str, Picture]) -> str:
    """Render a study for the README: a board as its picture, its table and what that says, others as a table."""
    name = rows[0].study
    if name in boards:
        file, table = f"results-{name}-scores.svg", board.short(replace(boards[name], rows=rows))
        drawn = [f"![{pictures[file].caption}](docs/{file})"] if file in pictures else []
        return "\n\n".join([*drawn, table.markdown(), table.about])
    table = results.results(rows)
    about = table.about.partition(". ")[0]
    return f"{about}.\n\n{table.markdown()}"


def _section(rows: list[Row], says: About, boards: dict[str, BoardResults], pictures: dict[str, Picture]) -> str:
    """Render a study; a board, or its search as long as it is alone, has the tables of a board, not a study's."""
    name = rows[0].study
    made = boards.get(name.removesuffix(RATES))
    if made and made.rows and name != made.name:
        tables = []
    elif made:
        tables = board.tables(made) + extensions.tables(rows)
    elif compared := pretraining(rows):
        tables = [compared]
    else:
        (scores, *others), details = export.tables(rows)
        gains = results.over_control(rows)
        if len(details) > 1:
            tables = [scores, *others, *details]
        elif gains:  # the table of a task has the scores of all tasks too
            tables = [_with_gains(details[0], gains), *others[1:]]
        else:
            tables = [*details, *others]
    notes = "\n".join(f"* {note}" for note in says.notes)
    parts = [f"## {name}", notes, f"Hardware: {says.hardware}.", f"```text\n{says.command}\n```"]
    parts += [f"![{picture.caption}]({file})" for file, picture in pictures.items()]
    return "\n\n".join([*parts, *(table.section() for table in tables)])


def _with_gains(table: Table, gains: Table) -> Table:
    """Add the gains over the control to the table of a task."""
    (column,) = (gains.cells[task] for task in gains.errors)
    cells = table.cells.copy()
    cells.insert(2, "gain", [column.get(key, Cell()) for key in cells.index])
    return replace(
        table, cells=cells, about=f"{table.about} gain: {gains.about[0].lower()}{gains.about[1:]}", errors=("gain",)
    )
