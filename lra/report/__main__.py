"""python -m lra.report: tables and figures of the records of every study, beside the published values."""

if __name__ == "__main__":
    from lra.startup import begin

    begin()  # before torch is imported

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from ..config.entry import main
from ..config.options import Options
from ..config.sections import Loggers, Name
from ..console import log
from ..disk.atomic import below
from ..options import Range
from ..runs import bench_record
from . import bench_plots, bench_tables, board, repository
from .export import LEGEND, every_table, export
from .results import finding
from .summary import collect
from .table import Chapter, show
from .wandb import publish


class ReportOptions(Options):
    conf: ClassVar[str] = "report"

    runs: Path
    published: bool
    board: bool
    study: Name | None
    out: Path | None
    width: Annotated[float, Range(2, 20)]
    show: list[str] | None
    logger: Loggers = Field({})


@main(ReportOptions)
def report(options: ReportOptions) -> None:
    """Print the tables and write the report.

    Raises:
        ValueError: there is nothing to show, or the folder cannot be written.
    """
    if options.published:
        print(f"written: {', '.join(map(str, repository.save()))}")
        return
    runs = options.runs
    measured, broken = bench_record.scan(runs) if options.study is None else ([], [])
    try:
        studies, damaged = collect(runs, options.study, board.published() if options.board else ())
    except ValueError as error:
        if not measured:
            raise ValueError("; ".join([str(error), *broken])) from None
        studies, damaged = {}, []
    out = options.out or below(runs, "report")
    try:
        efficiency = []
        if measured:
            pictures = bench_plots.pictures(measured, below(out, "efficiency"), studies, options.width)
            efficiency = [Chapter("Efficiency", bench_tables.LEGEND, bench_tables.tables(measured), pictures)]
        boards = board.chapters(studies, measured, below(out, "board"), options.width)
        damaged += broken
        damaged += export(out, studies, damaged, efficiency + boards, width=options.width, show=options.show)
    except OSError as error:
        path = error.filename or out
        raise ValueError(f"cannot write {path}: {error.strerror}; name a folder with out=<folder>") from None
    for line in damaged:
        log(f"skipped: {line}")
    for study, rows in studies.items():
        if line := finding(rows):
            print(f"{study}, {rows[0].task}: {line}")
    own = {name: rows for name, rows in studies.items() if not options.board or not board.is_published(rows)}
    show(every_table(own, boards), LEGEND)
    for chapter in efficiency:
        show(chapter.tables, chapter.about)
    print(f"written to {out}: index.html, report.md, main.tex, tables, figures{', efficiency' if measured else ''}")
    if "wandb" in options.logger:
        publish(options.logger["wandb"].options, studies, efficiency + boards, out)


if __name__ == "__main__":
    report()
