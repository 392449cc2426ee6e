"""The report's folder: index.html, report.md, main.tex, tables/*.csv and *.tex, figures/*.png and *.pdf."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..disk.atomic import below, write
from . import artifacts, extensions, figures, latex, page, paper_tables, plots, published, results, strips
from .palette import Palette
from .pretraining import pretraining
from .rates import RATES, rates
from .summary import Row
from .table import Chapter, Table, stem

LEGEND = (
    "Scores in percent. test: mean ± sample standard deviation over n seeds, each at its best dev checkpoint; (+k): k "
    "more seeds without a result, not in the mean; constant: score of the best constant answer; "
    "ms: median milliseconds a step. Published values come from the papers' own settings."
)

CAPTIONS = {
    "curves": "dev score over steps, mean and a band of one sample standard deviation over seeds",
    "speed": "test score over milliseconds of a training step; the area is the peak memory, if a GPU counted it",
}


def export(
    out: Path,
    studies: dict[str, list[Row]],
    damaged: list[str],
    chapters: Sequence[Chapter] = (),
    *,
    width: float = figures.TEXT,
    show: Sequence[str] | None = None,
) -> list[str]:
    """Write every file of the report.

    Args:
        out: folder of the report.
        studies: their rows by name.
        damaged: lines on records that could not be read, for the page.
        chapters: further chapters; the files of their pictures are already written.
        width: width of the tables of LaTeX and of the figures, in inches.
        show: names of the tables and figures in main.tex; None for all.

    Returns:
        One line for each file beside a record that could not be read.

    Raises:
        ValueError: ``show`` has a name that no table and no figure has.
        OSError: the folder cannot be written.
    """
    parts, unread = [], []
    for name, rows in studies.items():
        runs = {}
        for folder in (folder for row in rows for folder in row.runs):
            runs[folder], lines = artifacts.read(folder)
            unread += lines
        curves = plots.by_task(rows, {folder: found.curves for folder, found in runs.items()})
        # The labels of a search are rates of the same mechanisms, too many at one place for a picture of their speed.
        bubbles = {} if name.endswith(RATES) else plots.bubbles(rows)
        parts.append(page.Study(name, rows, *tables(rows), curves, bubbles, runs))
    for name in ("tables", "figures"):
        below(out, name).mkdir(exist_ok=True)
    seeds = itertools.chain.from_iterable(map(strips.pictures, studies.values()))
    about = "Lines as printed, in their order; below each the runs of the mechanism that it names."
    chapters = [
        *chapters,
        Chapter("Seeds and rates", strips.ABOUT, [], figures.save(seeds, out / "figures", width)),
        Chapter("Published tables", about, paper_tables.tables(studies)),
    ]
    every = [
        replace(table, title=table.title if table.title == part.name else f"{part.name}: {table.title}")
        for part in parts
        for table in (*part.results, *part.details)
    ] + [table for chapter in chapters for table in chapter.tables]
    for table in every:
        write(out / "tables" / f"{table.name}.csv", table.csv())
        write(out / "tables" / f"{table.name}.tex", latex.table(table, width))
    drawn = {path.with_suffix(".pdf"): f"{c.title}: {path.stem}" for c in chapters for path in c.pictures}
    for part in parts:
        palette = Palette(sorted({row.label for row in studies[part.name]}))
        trades = {" on ".join(place): group for place, group in part.bubbles.items()}
        for kind, panels, draw in (("curves", part.curves, plots.learning), ("speed", trades, plots.trade)):
            if panels:
                figure = figures.charts(panels, draw, palette, width)
                path = figures.write(figure, out / "figures" / stem(f"{part.name}-{kind}"), ("png", "pdf"))
                drawn[path.with_suffix(".pdf")] = f"{part.name}: {CAPTIONS[kind]}"
    names = [*(table.name for table in every), *(path.stem for path in drawn)]
    shown = names if show is None else show
    if unknown := set(shown) - set(names):
        raise ValueError(f"show: there is no {', '.join(sorted(unknown))}; there is {', '.join(names)}")
    floats = [table.name for table in every if table.name in shown]
    pictures = {path.relative_to(out): text for path, text in drawn.items() if path.stem in shown}
    write(out / "main.tex", latex.document(floats, pictures, width))
    values = [value for paper in paper_tables.PAPERS for value in paper_tables.printed(paper)]
    notes = published.notes(values + [value for rows in studies.values() for row in rows for value in row.published])
    write(out / "report.md", markdown(parts, chapters, notes))
    write(out / "index.html", page.render(parts, chapters, LEGEND, notes, damaged + unread, out))
    return unread


def tables(rows: list[Row]) -> tuple[list[Table], list[Table]]:
    """Make the tables of a study over all of its tasks, and those of each task; of a search only the best rates."""
    study, searched = rows[0].study, rates(rows)
    if searched and study.endswith(RATES):
        return [replace(searched, title=study)], []
    main = (results.results(rows), results.over_control(rows), searched, pretraining(rows))
    return [*filter(None, main), *extensions.tables(rows)], results.details(rows)


def every_table(studies: dict[str, list[Row]], chapters: Sequence[Chapter]) -> list[Table]:
    """List the tables of studies, titled by their names, then those of chapters."""
    made = [
        replace(table, title=f"{name}: {table.title}")
        for name, rows in studies.items()
        for table in itertools.chain(*reversed(tables(rows)))
    ]
    return made + [table for chapter in chapters for table in chapter.tables]


def markdown(studies: list[page.Study], chapters: Sequence[Chapter], notes: list[str]) -> str:
    """Format the report as Markdown: the tables, and the sources of the published values."""
    out = ["# Results", LEGEND]
    for study in studies:
        first, *others = *study.results, *study.details
        out += [first.section(2), *(table.section() for table in others)]
    for chapter in chapters:
        out += [f"## {chapter.title}", chapter.about, *(table.section() for table in chapter.tables)]
        out += [f"![{picture.stem}]({picture.parent.name}/{picture.name})" for picture in chapter.pictures]
    return "\n\n".join([*out, "## Notes on published values", "\n".join(notes)]) + "\n"
