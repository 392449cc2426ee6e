"""python -m lra.report: the records of every study as tables and pictures, beside what the papers published."""

import sys
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from ..config import main
from ..runs import bench_record, record
from . import bench_tables, files
from .publish import publish
from .summary import collect, sections
from .text import LEGEND, terminal


@main("report")
def report(config: DictConfig) -> None:
    """Print the tables and write them; raises ValueError where there is nothing to show or no place to write to."""
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
        parts = [bench_tables.chapter(measured, out, trained.values())] if measured else []
        damaged += broken
        damaged += files.write(out, studies, damaged, parts)
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
        for section in sections(rows):
            console.print(f"{study}: {section.title}", style="bold underline")
            console.print(section.about, terminal(section), "", sep="\n")
    console.print(LEGEND)
    if measured:
        bench_tables.show(console, measured)
    print(f"written to {out}: index.html, report.md, tables, figures{', efficiency' if measured else ''}")
    if "wandb" in config.get("logger", {}):
        publish(config.logger.wandb, studies, trained.values(), out)


if __name__ == "__main__":
    report()
