"""python -m lra.report: tables and figures of the records of every study, beside the published values."""

from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from ..config.entry import main
from ..console import log
from ..runs import bench_record
from ..runs import open as runs_on_disk
from . import bench_plots, bench_tables, repository
from .export import LEGEND, export, overall
from .results import details
from .summary import collect
from .table import Chapter
from .wandb import publish


@main("report")
def report(config: DictConfig) -> None:
    """Print the tables and write the report.

    Raises:
        ValueError: there is nothing to show, or the folder cannot be written.
    """
    if config.published:
        print(f"written: {', '.join(map(str, repository.save()))}")
        return
    runs = Path(config.runs)
    measured, broken = bench_record.scan(runs) if config.study is None else ([], [])
    try:
        studies, damaged = collect(runs, None if config.study is None else str(config.study))
    except ValueError:
        if not measured:
            raise
        studies, damaged = {}, []
    out, trained = Path(config.out or runs / "report"), runs_on_disk.scan(runs)[0]
    try:
        chapters = []
        if measured:
            pictures = bench_plots.pictures(measured, out / "efficiency", trained.values())
            chapters = [Chapter("Efficiency", bench_tables.LEGEND, bench_tables.tables(measured), pictures)]
        damaged += broken
        damaged += export(out, studies, damaged, chapters)
    except OSError as error:
        raise ValueError(
            f"cannot write {error.filename or out}: {error.strerror}; name a folder with out=<folder>"
        ) from None
    for line in damaged:
        log(f"skipped: {line}")
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 1000  # no line is wrapped in a pipe
    for study, rows in studies.items():
        for table in (*details(study, rows), *overall(study, rows)):
            console.print(f"{study}: {table.title}", style="bold underline")
            console.print(table.about, table.terminal(), "", sep="\n")
    console.print(LEGEND)
    if measured:
        bench_tables.show(console, measured)
    print(f"written to {out}: index.html, report.md, tables, figures{', efficiency' if measured else ''}")
    if "wandb" in config.get("logger", {}):
        publish(config.logger.wandb, studies, trained.values(), out)


if __name__ == "__main__":
    report()
