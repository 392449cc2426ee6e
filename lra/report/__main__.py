"""python -m lra.report: the records of every study as tables, beside what the papers published."""

import sys
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from .. import record
from ..bench import record as bench_record
from ..config import main
from . import efficiency
from .tables import collect, sections
from .text import LEGEND, markdown, terminal


@main("report")
def report(config: DictConfig) -> None:
    """Write the tables as Markdown and print them; raises ValueError where there is nothing to show."""
    runs = Path(config.runs)
    study = None if config.study is None else str(config.study)
    measured, broken = bench_record.scan(runs) if study is None else ([], [])
    trained = record.scan(runs)[0] if measured else []
    studies, damaged = collect(runs, study) if trained or not measured else ({}, [])
    for line in damaged + broken:
        print(f"skipped: {line}", file=sys.stderr)
    out = Path(config.out or runs / "report.md")
    costs = efficiency.tables(measured)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        drawn = efficiency.pictures(measured, out.parent / "pictures", trained) if measured else []
        text = markdown(studies) if studies else ""
        record.write(out, text + (efficiency.markdown(costs, drawn) if measured else ""))
    except OSError as error:
        raise ValueError(f"cannot write {out}: {error.strerror}; name another file with out=<file>") from None
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 1000  # a pipe has no width to fit
    for study, rows in studies.items():
        for section in sections(rows):
            console.print(f"{study}: {section.title}", style="bold underline")
            console.print(section.about, terminal(section), "", sep="\n")
    if studies:
        console.print(LEGEND)
    for table in costs:
        console.print(efficiency.terminal(table), "")
    if costs:
        console.print(efficiency.LEGEND)
    print(f"written to {', '.join(map(str, [out, *drawn]))}")


if __name__ == "__main__":
    report()
