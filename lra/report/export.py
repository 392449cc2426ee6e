"""The report's folder: index.html, report.md, tables/*.csv and *.tex, figures/*.png and *.pdf."""

from collections.abc import Sequence
from pathlib import Path

from ..disk.atomic import write
from . import artifacts, figures, page, paper_tables, plots, published, results
from .artifacts import Artifacts
from .palette import Palette
from .pretraining import pretraining
from .summary import Row
from .table import Chapter, stem

LEGEND = (
    "Scores in percent. test: mean ± sample standard deviation over n seeds, each at its best dev checkpoint; (+k): k "
    "more seeds without a result, not in the mean; constant: score of the best constant answer; "
    "ms: median milliseconds a step. Published values come from the papers' own settings."
)


def export(out: Path, studies: dict[str, list[Row]], damaged: list[str], chapters: Sequence[Chapter] = ()) -> list[str]:
    """Write everything; returns one line for each file beside a record that could not be read.

    Args:
        chapters: More of the report, the files of their pictures already written.

    Raises:
        OSError: If the folder cannot be written to.
    """
    runs, unread = {}, []
    for folder in (folder for rows in studies.values() for row in rows for folder in row.runs):
        runs[folder], lines = artifacts.read(folder)
        unread += lines
    shown = [study(name, rows, runs) for name, rows in studies.items()]
    about = "Lines as printed, in their order; below each the runs of the mechanism that it names."
    chapters = [*chapters, Chapter("Published tables", about, paper_tables.tables(studies))]
    for name in ("tables", "figures"):
        (out / name).mkdir(parents=True, exist_ok=True)
    tables = [table for one in shown for table in (*one.results, *one.details)]
    for table in tables + [table for chapter in chapters for table in chapter.tables]:
        write(out / "tables" / f"{table.name}.csv", table.csv())
        write(out / "tables" / f"{table.name}.tex", table.latex())
    palette = Palette(sorted({row.label for rows in studies.values() for row in rows}))
    for one in shown:
        trades = {" on ".join(place): group for place, group in one.bubbles.items()}
        for kind, panels, draw in (("curves", one.curves, plots.learning), ("speed", trades, plots.trade)):
            if panels:
                figures.save(out / "figures" / stem(f"{one.name}-{kind}"), panels, draw, palette)
    write(out / "report.md", markdown(shown, chapters))
    notes = published.notes(value for paper in paper_tables.PAPERS for value in paper_tables.printed(paper))
    write(
        out / "index.html",
        page.render(shown, chapters, legend=LEGEND, notes=notes, damaged=damaged + unread, out=out),
    )
    return unread


def study(name: str, rows: list[Row], runs: dict[Path, Artifacts]) -> page.Study:
    """The tables of a study and the numbers of its pictures."""
    curves: dict[str, list[plots.Curve]] = {}
    for row in rows:
        if curve := plots.over_seeds(row, {folder: runs[folder].curves for folder in row.runs}):
            curves.setdefault(row.task, []).append(curve)
    tables = [*filter(None, (results.results(name, rows), results.over_control(name, rows), pretraining(name, rows)))]
    return page.Study(name, rows, tables, results.details(name, rows), curves, plots.bubbles(rows), runs)


def markdown(studies: list[page.Study], chapters: Sequence[Chapter]) -> str:
    """The tables for GitHub, and where the published values come from."""
    out = ["# Results", LEGEND]
    for one in studies:
        first, *others = *one.results, *one.details
        out += [f"## {one.name}", first.about, first.markdown()]
        for table in others:
            out += [f"### {table.title}", table.about, table.markdown()]
    for chapter in chapters:
        out += [f"## {chapter.title}", chapter.about]
        for table in chapter.tables:
            out += [f"### {table.title}", table.about, table.markdown()]
        out += [f"![{picture.stem}]({picture.parent.name}/{picture.name})" for picture in chapter.pictures]
    beside = [v for one in studies for row in one.rows for v in published.accuracies(row.label, [row.task])]
    beside += [value for paper in paper_tables.PAPERS for value in paper_tables.printed(paper)]
    return "\n\n".join([*out, "## Notes on published values", "\n".join(published.notes(beside))]) + "\n"
