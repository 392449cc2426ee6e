"""The report's folder: index.html, report.md, main.tex, tables/*.csv and *.tex, figures/*.png, *.pdf and *.svg."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ..io.atomic import write
from ..names import unique_names
from ..results import figures, published
from ..results.lr_search import SEARCH_SUFFIX, lr_table
from ..results.palette import Palette
from ..results.published import PrintedValue
from ..results.score_cells import MARKS
from ..results.summary import Row, Studies
from ..results.table import Chapter, Table
from . import details, extensions, latex, page, paper_tables, results
from .plots import learning_curves, seed_points, speed_accuracy
from .plots.lr_curves import highlight
from .pretraining import pretraining

# Shown once per page: everything that the tables have in common.
LEGEND = (
    "Scores are percentages: mean ± sample standard deviation over n seeds, each tested at its best validation "
    "checkpoint; for Text in the papers' protocol the test set selects it, so these scores are optimistic. "
    "(+k): k failed seeds, excluded from the mean. (collapsed k/n): k of n seeds give every example the same answer; "
    f"the mean includes them. {MARKS} constant: score of the best constant answer. ms: median milliseconds per step on "
    "the device with the most runs of the task. Published values come from the papers' own settings."
)
PAPERS_ABOUT = "Rows as printed, in their order; below each row are our runs of the mechanism that it names."
CURVES_CAPTION = "validation score over steps, mean and a band of one sample standard deviation over seeds"
SPEED_CAPTION = "test score over milliseconds per step; the area is the peak memory, if measured on a GPU"


def export(
    out: Path,
    studies: Studies,
    damaged: list[str],
    chapters: Sequence[Chapter] = (),
    *,
    width: float = figures.TEXT,
    show: Sequence[str] | None = None,
) -> list[str]:
    """Write every file of the report.

    Args:
        out: folder of the report.
        studies: rows of each study by name.
        damaged: messages about skipped files, for the page.
        chapters: further chapters; the files of their pictures are already written.
        width: width of LaTeX tables and figures, in inches.
        show: names of the tables and figures in main.tex; None for all.

    Returns:
        A message for each file in a run directory that could not be read.

    Raises:
        ValueError: ``show`` has a name that no table and no figure has.
        OSError: the folder cannot be written.
    """
    for name in ("tables", "figures"):
        (out / name).mkdir(parents=True, exist_ok=True)

    # Read the runs, then make the chapters about all studies.
    contents, unreadable = _read_studies(studies)
    chapters = [*chapters, *_common_chapters(studies, out / "figures", width)]
    contents, chapters = _with_file_names(contents, chapters)

    # Tables as CSV and LaTeX, figures as PNG and PDF, and the document that shows them.
    tables = _titled_tables(contents, chapters)
    for table in tables:
        path = out / "tables" / table.name
        write(path.with_name(f"{table.name}.csv"), table.csv())
        write(path.with_name(f"{table.name}.tex"), latex.table(table, width))
    captions = {}
    for chapter in chapters:
        for path, caption in chapter.pictures.items():
            captions[path.with_suffix(".pdf")] = f"{chapter.title}: {caption}"
    captions |= _draw_studies(contents, out / "figures", width)
    _write_document(out, tables, captions, width, show)

    # The page and its Markdown version.
    notes = published.notes(_published_values(studies))
    write(out / "report.md", markdown(contents, chapters, notes))
    html = page.render(contents, chapters, LEGEND, notes, damaged + unreadable, out)
    write(out / "index.html", html)
    return unreadable


def _common_chapters(studies: Studies, folder: Path, width: float) -> list[Chapter]:
    """Make the chapters about all studies: their seeds and learning rates, and the papers' tables."""
    pictures = []
    for rows in studies.values():
        pictures += seed_points.pictures(rows)
    files = figures.save(pictures, folder, width)
    tables = paper_tables.tables(studies)
    return [
        Chapter("Seeds and learning rates", seed_points.ABOUT, [], files),
        Chapter("Published tables", PAPERS_ABOUT, tables),
    ]


def _published_values(studies: Studies) -> list[PrintedValue]:
    """List the published values that the report shows: of the papers' tables, then of the rows."""
    values = []
    for paper in paper_tables.PAPERS:
        values += paper_tables.printed(paper)
    for rows in studies.values():
        for row in rows:
            values += row.published
    return values


def _read_studies(studies: Studies) -> tuple[list[page.Study], list[str]]:
    """Read the files of all runs, and make the tables and charts of each study.

    Returns:
        The contents of the studies, and a message for each file that could not be read.
    """
    contents = []
    unreadable = []
    for name, rows in studies.items():
        # Curves, configuration and maps of every run.
        runs = {}
        run_curves = {}
        for folder in itertools.chain.from_iterable(row.runs for row in rows):
            files, messages = page.read_artifacts(folder)
            runs[folder] = files
            run_curves[folder] = files.curves
            unreadable += messages
        curves = learning_curves.by_task(rows, run_curves)
        # The trials of a mechanism all have the same speed: their bubbles would cover each other.
        is_search = name.endswith(SEARCH_SUFFIX)
        bubbles = {} if is_search else speed_accuracy.by_task_and_device(rows)
        overview, by_task = tables(rows)
        contents.append(page.Study(name, rows, overview, by_task, curves, bubbles, runs))
    return contents, unreadable


def _with_file_names(contents: list[page.Study], chapters: list[Chapter]) -> tuple[list[page.Study], list[Chapter]]:
    """Replace the names of all tables by unique file names."""
    # Names are unique over the whole folder, not for each study.
    all_tables: list[Table] = []
    for study in contents:
        all_tables += study.results + study.details
    for chapter in chapters:
        all_tables += chapter.tables
    names = unique_names(table.name for table in all_tables)

    def renamed(tables: Iterable[Table]) -> list[Table]:
        return [replace(table, name=names[table.name]) for table in tables]

    # The same contents with the new names.
    renamed_contents = []
    for study in contents:
        results_tables = renamed(study.results)
        details_tables = renamed(study.details)
        renamed_contents.append(study._replace(results=results_tables, details=details_tables))
    renamed_chapters = [chapter._replace(tables=renamed(chapter.tables)) for chapter in chapters]
    return renamed_contents, renamed_chapters


def _titled_tables(contents: list[page.Study], chapters: Sequence[Chapter]) -> list[Table]:
    """List all tables; the titles of a study's tables begin with its name."""
    # A table file stands alone, so that its title has to name the study.
    titled = []
    for study in contents:
        for table in study.results + study.details:
            title = table.title
            if title != study.name:
                title = f"{study.name}: {title}"
            titled.append(replace(table, title=title))
    for chapter in chapters:
        titled += chapter.tables
    return titled


def _draw_studies(contents: list[page.Study], folder: Path, width: float) -> dict[Path, str]:
    """Draw the learning curves and the speed of each study; returns the captions of the PDF files."""
    drawings = {}
    all_captions = {}
    for study in contents:
        # Both figures of a study use the same colours; of many labels only references and the best ones have one.
        coloured = highlight({study.name: study.rows}, lambda row: row.test or 0.0).place
        palette = Palette(sorted({row.label for row in study.rows if row.label in coloured}))
        curves_name = f"{study.name}/curves"
        speed_name = f"{study.name}/speed"
        all_captions[curves_name] = f"{study.name}: {CURVES_CAPTION}"
        all_captions[speed_name] = f"{study.name}: {SPEED_CAPTION}"
        if study.curves:
            drawings[curves_name] = figures.charts(study.curves, learning_curves.draw, palette, width)
        if study.bubbles:
            panels = {" on ".join(key): bubbles for key, bubbles in study.bubbles.items()}
            drawings[speed_name] = figures.charts(panels, speed_accuracy.draw, palette, width, markers=True)

    # File names are unique among all figures that a study may have.
    names = unique_names(all_captions)
    captions = {}
    for name, figure in drawings.items():
        path = figures.write(figure, folder / names[name], ("png", "pdf"))
        captions[path.with_suffix(".pdf")] = all_captions[name]
    return captions


def _write_document(
    out: Path,
    tables: list[Table],
    captions: dict[Path, str],
    width: float,
    show: Sequence[str] | None,
) -> None:
    """Write main.tex with the tables and figures named by ``show``."""
    names = [table.name for table in tables]
    names += [path.stem for path in captions]
    # By default the document shows everything.
    if show is None:
        show = names
    unknown = set(show) - set(names)
    if unknown:
        raise ValueError(f"show: there is no {', '.join(sorted(unknown))}; there is {', '.join(names)}")

    table_names = [table.name for table in tables if table.name in show]
    pictures = {}
    for path, caption in captions.items():
        if path.stem in show:
            pictures[path.relative_to(out)] = caption
    document = latex.document(table_names, pictures, width)
    write(out / "main.tex", document)


def tables(rows: list[Row]) -> tuple[list[Table], list[Table]]:
    """Make the tables of a study over all of its tasks, and the tables of each task.

    A learning-rate search has only the table of the best rates.
    """
    study = rows[0].study
    search = lr_table(rows)
    if search and study.endswith(SEARCH_SUFFIX):
        return [replace(search, title=study)], []
    candidates = [results.results(rows), results.over_control(rows), search, pretraining(rows)]
    overview = [table for table in candidates if table]
    return overview + extensions.tables(rows), details.details(rows)


def every_table(studies: Studies, chapters: Sequence[Chapter]) -> list[Table]:
    """List the tables of studies, titled by their names, details first, then the tables of chapters."""
    all_tables = []
    for name, rows in studies.items():
        overview, by_task = tables(rows)
        for table in by_task + overview:
            titled_table = replace(table, title=f"{name}: {table.title}")
            all_tables.append(titled_table)
    for chapter in chapters:
        all_tables += chapter.tables
    return all_tables


def markdown(studies: list[page.Study], chapters: Sequence[Chapter], notes: list[str]) -> str:
    """Format the report as Markdown: legend, tables, pictures of chapters, and the sources of the published values."""
    sections = ["# Results", LEGEND]
    for study in studies:
        # The first table has the name of the study as its heading.
        first, *further = study.results + study.details
        sections.append(first.section(2))
        sections += [table.section() for table in further]
    for chapter in chapters:
        sections += [f"## {chapter.title}", chapter.about]
        sections += [table.section() for table in chapter.tables]
        for path, caption in chapter.pictures.items():
            sections.append(f"![{caption}]({path.parent.name}/{path.name})")
    sections += ["## Notes on published values", "\n".join(notes)]
    return "\n\n".join(sections) + "\n"
