"""What the report leaves in its folder: index.html, report.md, tables/*.csv and *.tex, figures/*.png and *.pdf."""

from collections.abc import Sequence
from pathlib import Path

from ..runs import record
from . import beside, curves, figures, formats, page, paper_tables, published, text
from .beside import Beside
from .boards import board, details, stem
from .grid import Grid, Part
from .palette import Palette
from .summary import Row, sections


def write(out: Path, studies: dict[str, list[Row]], damaged: list[str], parts: Sequence[Part] = ()) -> list[str]:
    """Write everything; returns one line for each file beside a record that could not be read. OSError as it comes.

    ``parts`` are chapters besides the studies, with tables and pictures; the pictures' files are there already.
    """
    runs, unread = {}, []
    for folder in (folder for rows in studies.values() for row in rows for folder in row.runs):
        runs[folder], lines = beside.read(folder)
        unread += lines
    drawn = [study(name, rows, runs) for name, rows in studies.items()]
    printed = paper_tables.grids(studies)
    printed_part = Part("Published tables", "Lines as printed, ours below each.", printed)
    for name in ("tables", "figures"):
        (out / name).mkdir(parents=True, exist_ok=True)
    grids: list[Grid] = [board(name, rows) for name, rows in studies.items()]
    grids += [details(name, section) for name, rows in studies.items() for section in sections(rows)]
    grids += [grid for part in (*parts, printed_part) for grid in part.grids]
    for grid in grids:
        record.write(out / "tables" / f"{grid.name}.csv", formats.comma(grid))
        record.write(out / "tables" / f"{grid.name}.tex", formats.latex(grid))
    palette = Palette(sorted({row.label for rows in studies.values() for row in rows}))
    for made in drawn:
        if made.curves:
            figures.write(out / "figures", stem(f"{made.name}-curves"), made.curves, figures.learning, palette)
        if made.bubbles:
            panels = {" on ".join(place): group for place, group in made.bubbles.items()}
            figures.write(out / "figures", stem(f"{made.name}-speed"), panels, figures.trade, palette)
    record.write(out / "report.md", text.markdown(studies, [*parts, printed_part]))
    notes = published.notes(value for paper in paper_tables.PAPERS for value in paper_tables.printed(paper))
    record.write(out / "index.html", page.render(drawn, printed, parts, damaged + unread, notes, out))
    return unread


def study(name: str, rows: list[Row], runs: dict[Path, Beside]) -> page.Study:
    """The pictures' numbers of a study: curves by task, bubbles by task and device."""
    lines: dict[str, list[curves.Curve]] = {}
    for row in rows:
        if curve := curves.over_seeds(row, {folder: runs[folder].curves for folder in row.runs}):
            lines.setdefault(row.task, []).append(curve)
    return page.Study(name, rows, lines, curves.bubbles(rows), runs)
