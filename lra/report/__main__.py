"""python -m lra.report: tables and figures of the records of every study, next to the published values."""

if __name__ == "__main__":
    from lra.config.manual import begin

    begin("report")  # before torch is imported

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from ..board import chapter as board
from ..config import CONF
from ..config.entry import main
from ..config.options import Options
from ..config.schema import Loggers, Name
from ..console import log
from ..options import Range
from ..results import bench_record
from ..results.bench_record import BenchRecord
from ..results.summary import Studies, collect
from ..results.table import Chapter, show
from ..runs import published, reader
from . import bench_figures, bench_tables, repository
from .export import LEGEND, every_table, export
from .overview import finding
from .wandb import publish


class ReportOptions(Options):
    """The options of ``lra.report``, see conf/report.yaml."""

    conf: ClassVar[str] = "report"

    runs: Path
    published: bool
    board: bool
    compare: list[str]
    study: Name | None
    out: Path | None
    width: Annotated[float, Range(2, 20)]
    show: list[str] | None
    logger: Loggers = Field({})


@main(ReportOptions)
def report(options: ReportOptions) -> None:
    """Print the tables and write the report.

    Raises:
        ValueError: there is nothing to show, ``show`` or ``compare`` has an unknown name, the folder cannot be written,
            or ``published`` is set outside a checkout.
    """
    if options.published:
        if not (CONF.parent / "docs").is_dir():
            raise ValueError("published=true needs a checkout of the repository, whose pages it writes")
        paths = repository.save()
        print(f"written: {', '.join(map(str, paths))}")
        return

    # Read runs and benchmarks, write the folder, then print.
    studies, benchmarks, damaged = _read(options)
    out = options.out or options.runs / "report"
    try:
        efficiency = _efficiency(benchmarks, out / "efficiency", studies, options.width)
        board_chapters = board.chapters(studies, benchmarks, out / "board", options.width)
        chapters = efficiency + board_chapters
        unreadable, figures = export(out, studies, damaged, chapters, width=options.width, show=options.show)
    except OSError as error:
        path = error.filename or out
        raise ValueError(f"cannot write {path}: {error.strerror}; name a folder with out=<folder>") from None

    for message in damaged + unreadable:
        log(f"skipped: {message}")
    _print_tables(options, studies, board_chapters, efficiency)
    files = "index.html, report.md, main.tex, tables, figures"
    if benchmarks:
        files += ", efficiency"
    if any(chapter.pictures for chapter in board_chapters):
        files += ", board"
    print(f"written to {out}: {files}")
    if "wandb" in options.logger:
        publish(options.logger["wandb"].options, studies, chapters, out, figures)


def _read(options: ReportOptions) -> tuple[Studies, list[BenchRecord], list[str]]:
    """Read the runs below ``options.runs``, its benchmarks unless one study is named, and the chosen published studies.

    Returns:
        The rows of each study, the benchmarks, and a message for each file that was skipped.
    """
    benchmarks: list[BenchRecord] = []
    broken: list[str] = []
    if options.study is None:
        benchmarks, broken = bench_record.scan(options.runs)
    further = board.published() if options.board else []
    further += [published.find_study(name) for name in options.compare]
    try:
        studies, damaged = collect(options.runs, options.study, further)
    except ValueError as error:
        # A folder with benchmarks alone has a report too.
        if not benchmarks:
            raise ValueError("; ".join([str(error), *broken])) from None
        # Name the runs that could not be read.
        _, damaged = reader.scan(options.runs)
        return {}, benchmarks, damaged + broken
    return studies, benchmarks, damaged + broken


def _efficiency(
    benchmarks: list[BenchRecord],
    folder: Path,
    studies: Studies,
    width: float,
) -> list[Chapter]:
    """Make the chapter on the cost of mechanisms; none without a benchmark."""
    if not benchmarks:
        return []
    paths = bench_figures.save_pictures(benchmarks, folder, studies, width)
    captions = {path: path.stem for path in paths}
    return [Chapter("Efficiency", bench_tables.LEGEND, bench_tables.tables(benchmarks), captions)]


def _print_tables(
    options: ReportOptions,
    studies: Studies,
    board_chapters: list[Chapter],
    efficiency: list[Chapter],
) -> None:
    """Print the finding and the tables of each study; the published board has a chapter instead."""
    for study, rows in studies.items():
        sentence = finding(rows)
        if sentence:
            print(f"{study}, {rows[0].task}: {sentence}")

    # The details of the published board would bury your own tables.
    printed = {}
    for name, rows in studies.items():
        if not (options.board and board.is_published(rows)):
            printed[name] = rows
    show(every_table(printed, board_chapters), LEGEND)
    for chapter in efficiency:
        show(chapter.tables, chapter.about)


if __name__ == "__main__":
    report()
