"""python -m lra.report: the records of every study as tables, beside what the papers published."""

import sys
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from .. import record
from ..bench import record as bench_record
from ..config import main
from . import efficiency
from .publish import publish
from .tables import collect, sections
from .text import LEGEND, markdown, terminal


@main("report")
def report(config: DictConfig) -> None:
    """Write the tables as Markdown and print them; raises ValueError where there is nothing to show."""
    runs = Path(config.runs)
    measured, broken = bench_record.scan(runs) if config.study is None else ([], [])
    try:
        studies, damaged = collect(runs, None if config.study is None else str(config.study))
    except ValueError:
        if not measured:
            raise
        studies, damaged = {}, []
    for line in damaged + broken:
        print(f"skipped: {line}", file=sys.stderr)
    out = Path(config.out or runs / "report.md")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        record.write(out, markdown(studies))
        if measured:
            efficiency.write(out.parent / "efficiency", measured, record.scan(runs)[0])
    except OSError as error:
        raise ValueError(f"cannot write {out}: {error.strerror}; name another file with out=<file>") from None
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 1000  # a pipe has no width to fit
    for study, rows in studies.items():
        for section in sections(rows):
            console.print(f"{study}: {section.title}", style="bold underline")
            console.print(section.about, terminal(section), "", sep="\n")
    console.print(LEGEND)
    if measured:
        efficiency.show(console, measured)
    print(f"written to {out}{f' and {out.parent}/efficiency' if measured else ''}")
    if "wandb" in config.get("logger", {}):
        publish(config.logger.wandb, studies, record.scan(runs)[0], out.parent)


if __name__ == "__main__":
    report()
