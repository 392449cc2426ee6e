"""The report's folder: index.html, report.md, main.tex, tables/*.csv and *.tex, figures/*.png, *.pdf and *.svg."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from ..evaluate import record as fresh_record
from ..io.atomic import write
from ..names import unique_names
from ..results import figures, paper_values
from ..results.figures import Picture
from ..results.lr_search import SEARCH_SUFFIX, lr_table
from ..results.palette import Palette
from ..results.paper_values import PrintedValue
from ..results.score_cells import MARKS
from ..results.summary import Row, Studies
from ..results.table import Chapter, Table, in_markdown
from . import details, extensions, latex, overview, page, paper_tables
from .plots import learning_curves, seed_points, speed_accuracy
from .plots.lr_curves import highlight
from .pretraining import pretraining

# Shown once per page: everything that the tables have in common. A page with marks appends their explanation.
LEGEND = (
    "Scores are percentages: mean ± sample standard deviation over n seeds, each tested at its best validation "
    "checkpoint; for Text in the papers' protocol the test set selects it, so these scores are optimistic. "
    "(+k): k failed seeds, excluded from the mean. (collapsed k/n): k of n seeds give every example the same answer; "
    "the mean includes them. fresh test: accuracy on further generated examples (lra evaluate), ± standard error. val: "
    "mean validation score of these checkpoints. constant: test score of the best constant answer. ms: median "
    "milliseconds per step on the device with the most runs of the task; CPUs of different models with as many threads "
    "count as one. details: facts in which rows differ. Published values: other settings."
)
PAPERS_ABOUT = "Rows as printed, in their order; below each row are our runs of the mechanism that it names."
CURVES_CAPTION = "validation score over steps, mean and a band of one sample standard deviation over seeds"
SPEED_CAPTION = (
    "test score over milliseconds per step; the area of a bubble grows with its peak memory on a GPU, relative to the "
    "largest in the chart; an unknown memory is drawn like a tenth of the largest"
)


def export(
    out: Path,
    studies: Studies,
    damaged: list[str],
    chapters: Sequence[Chapter] = (),
    *,
    width: float = figures.TEXT_WIDTH,
    show: Sequence[str] | None = None,
) -> tuple[list[str], list[Path]]:
    """Write every file of the report.

    Args:
        out: folder of the report.
        studies: rows of each study by name.
        damaged: messages about skipped files, for the page.
        chapters: further chapters; the files of their pictures are already written.
        width: width of LaTeX tables and figures, in inches.
        show: names of the tables and figures in main.tex; None for all.

    Returns:
        A message for each file in a run directory that could not be read, and the PNG files of all figures.

    Raises:
        ValueError: ``show`` has a name that no table and no figure has.
        OSError: the folder cannot be written.
    """
    for name in ("tables", "figures"):
        (out / name).mkdir(parents=True, exist_ok=True)

    # Read the runs, then make all tables and plan the figures of the studies.
    contents, unreadable = _read_studies(studies)
    seeds_and_rates = []
    for rows in studies.values():
        seeds_and_rates += seed_points.pictures(rows)
    study_pictures = _study_pictures(contents)
    papers_chapter = Chapter("Published tables", PAPERS_ABOUT, paper_tables.tables(studies))
    contents, chapters = _with_file_names(contents, [*chapters, papers_chapter])
    all_tables = _titled_tables(contents, chapters)

    # A wrong name in ``show`` is reported before the figures are drawn, which takes longest.
    names = [table.name for table in all_tables]
    for chapter in chapters:
        names += [path.stem for path in chapter.pictures]
    names += unique_names(picture.name for picture in seeds_and_rates).values()
    names += study_pictures.keys()
    _check_names(show, names)

    # Tables as CSV and LaTeX.
    for table in all_tables:
        path = out / "tables" / table.name
        write(path.with_name(f"{table.name}.csv"), table.csv())
        write(path.with_name(f"{table.name}.tex"), latex.format_table(table, width))
    files = figures.save(seeds_and_rates, out / "figures", width)
    # The page needs the papers' tables as the last chapter.
    if files:
        chapters.insert(-1, Chapter("Seeds and learning rates", seed_points.ABOUT, [], files))
    captions = {}
    for chapter in chapters:
        for path, caption in chapter.pictures.items():
            captions[path.with_suffix(".pdf")] = f"{chapter.title}: {caption}"
    captions |= _draw_studies(study_pictures, out / "figures", width)
    _write_document(out, all_tables, captions, width, show)

    # The page and its Markdown version.
    notes = paper_values.notes(_published_values(studies))
    write(out / "report.md", markdown(contents, chapters, notes))
    html = page.render(contents, chapters, f"{LEGEND} {MARKS}", notes, damaged + unreadable, out)
    write(out / "index.html", html)
    return unreadable, [path.with_suffix(".png") for path in captions]


def _check_names(show: Sequence[str] | None, names: Sequence[str]) -> None:
    """Raise ValueError if ``show`` has a name that no table and no figure has."""
    unknown = set(show or ()) - set(names)
    if unknown:
        raise ValueError(f"show: unknown name {', '.join(sorted(unknown))}; the names are {', '.join(names)}")


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
        # Report damaged tables of fresh tests, which the details leave out; published runs of a study share one table.
        for study_dir in dict.fromkeys(Path(*folder.parts[:-3]) for folder in runs):
            try:
                fresh_record.read_table(study_dir)
            except ValueError as error:
                unreadable.append(str(error))
        curves = learning_curves.by_task(rows, run_curves)
        # The trials of a mechanism all have the same speed: their bubbles would cover each other.
        is_search = name.endswith(SEARCH_SUFFIX)
        bubbles = {} if is_search else speed_accuracy.by_task_and_device(rows)
        study_tables, task_tables = tables(rows)
        contents.append(page.Study(name, rows, study_tables, task_tables, curves, bubbles, runs))
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
    # A table file stands alone, so its title has to name the study.
    titled = []
    for study in contents:
        titled += [_titled(table, study.name) for table in study.results + study.details]
    for chapter in chapters:
        titled += chapter.tables
    return titled


def _titled(table: Table, study: str) -> Table:
    """Begin the title of a table with the name of its study, unless the title is that name."""
    if table.title == study:
        return table
    return replace(table, title=f"{study}: {table.title}")


def _study_pictures(contents: list[page.Study]) -> dict[str, Picture]:
    """List the figures of the learning curves and the speed of each study by their file names."""
    pictures = []
    for study in contents:
        # Both figures of a study use the same colours; of many labels only references and the best ones have one.
        highlighted = highlight({study.name: study.rows}, lambda row: row.test or 0.0)
        palette = Palette(sorted({row.label for row in study.rows if row.label in highlighted.position}))
        pictures += [_curves_picture(study, palette), _speed_picture(study, palette)]
    # File names are unique among all figures that a study may have.
    names = unique_names(picture.name for picture in pictures)
    return {names[picture.name]: picture for picture in pictures if picture.panels}


def _curves_picture(study: page.Study, palette: Palette) -> Picture:
    def draw(panels: Mapping[str, list], width: float) -> Figure:
        return figures.charts(panels, learning_curves.draw, palette, width)

    return Picture(f"{study.name}/curves", f"{study.name}: {CURVES_CAPTION}", draw, study.curves)


def _speed_picture(study: page.Study, palette: Palette) -> Picture:
    def draw(panels: Mapping[str, list], width: float) -> Figure:
        return figures.charts(panels, speed_accuracy.draw, palette, width, markers=True)

    panels = {" on ".join(key): bubbles for key, bubbles in study.bubbles.items()}
    return Picture(f"{study.name}/speed", f"{study.name}: {SPEED_CAPTION}", draw, panels)


def _draw_studies(pictures: Mapping[str, Picture], folder: Path, width: float) -> dict[Path, str]:
    """Draw the pictures of ``_study_pictures`` as PNG and PDF; returns the captions of the PDF files."""
    captions = {}
    for name, picture in pictures.items():
        figure = picture.draw(picture.panels, width)
        path = figures.write(figure, folder / name, ("png", "pdf"))
        captions[path.with_suffix(".pdf")] = picture.caption
    return captions


def _write_document(
    out: Path,
    tables: list[Table],
    captions: dict[Path, str],
    width: float,
    show: Sequence[str] | None,
) -> None:
    """Write main.tex with the tables and figures named by ``show``, or with all of them."""
    table_names = [table.name for table in tables if show is None or table.name in show]
    pictures = {}
    for path, caption in captions.items():
        if show is None or path.stem in show:
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
    candidates = [overview.score_table(rows), overview.over_control(rows), search, pretraining(rows)]
    overview_tables = [table for table in candidates if table]
    return overview_tables + extensions.tables(rows), details.details(rows)


def every_table(studies: Studies, chapters: Sequence[Chapter]) -> list[Table]:
    """List all tables for the terminal and W&B: the studies' tables, details first, then the chapters' tables."""
    all_tables = []
    for name, rows in studies.items():
        study_tables, task_tables = tables(rows)
        all_tables += [_titled(table, name) for table in task_tables + study_tables]
    for chapter in chapters:
        all_tables += chapter.tables
    return all_tables


def markdown(contents: list[page.Study], chapters: Sequence[Chapter], notes: list[str]) -> str:
    """Format the report as Markdown: legend, tables, pictures of chapters, and the sources of the published values."""
    sections = ["# Results", f"{LEGEND} {MARKS}"]
    for study in contents:
        # The first table has the name of the study as its heading.
        first, *further = study.results + study.details
        sections.append(first.section(2))
        sections += [table.section() for table in further]
    for chapter in chapters:
        sections += [f"## {in_markdown(chapter.title)}", chapter.about]
        sections += [table.section() for table in chapter.tables]
        for path, caption in chapter.pictures.items():
            sections.append(f"![{in_markdown(caption)}]({path.parent.name}/{path.name})")
    sections += ["## Notes on published values", "\n".join(notes)]
    return "\n\n".join(sections) + "\n"
