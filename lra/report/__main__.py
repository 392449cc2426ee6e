"""python -m lra.report: the records of every study as tables and pictures, beside what the papers published."""

import sys
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from ..config import main
from ..runs import bench_record, record
from . import bench_plots, bench_tables, repository
from .export import LEGEND, export
from .pretraining import pretraining
from .results import details, over_control
from .summary import collect
from .table import Chapter
from .wandb import publish


@main("report")
def report(config: DictConfig) -> None:
    """Print the tables and write them; raise ValueError if there is nothing to show or no place to write to."""
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
    out, trained = Path(config.out or runs / "report"), record.scan(runs)[0]
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
        print(f"skipped: {line}", file=sys.stderr)
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 1000  # a pipe has no width to fit
    for study, rows in studies.items():
        for table in filter(None, (*details(study, rows), over_control(study, rows), pretraining(study, rows))):
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
