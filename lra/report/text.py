"""The tables as text: for a terminal, and as Markdown."""

from collections.abc import Sequence

from rich import box
from rich.padding import Padding
from rich.table import Table

from . import formats, paper_tables, published
from .boards import board, details
from .grid import Part
from .summary import Row, Section, sections

LEGEND = (
    "Scores in percent. test: mean ± sample standard deviation over n seeds, each at its best dev checkpoint; (+k): k "
    "more seeds without a result, not in the mean; constant: score of the best constant answer; "
    "ms: median milliseconds a step. Published values come from the papers' own settings."
)


def terminal(section: Section) -> Table:
    """Details and published values stand in lines of their own below a mechanism, so that 80 columns are enough."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for i, name in enumerate(section.head):
        table.add_column(name, overflow="fold", justify="right" if i > 1 else "left")
    for line in section.lines:
        table.add_row(*line.cells, style="bold")
        for text, value in [("; ".join(line.details), ""), *line.published]:
            if text:
                table.add_row(Padding(text, (0, 0, 0, 2)), value)
    return table


def markdown(studies: dict[str, list[Row]], parts: Sequence[Part] = ()) -> str:
    """The same tables for GitHub, the papers' own beside ours, and where the published values come from."""
    out = ["# Results", LEGEND]
    for study, rows in studies.items():
        made = board(study, rows)
        out += [f"## {study}", made.about, formats.markdown(made)]
        for section in sections(rows):
            made = details(study, section)
            out += [f"### {section.title}", section.about, formats.markdown(made)]
    for part in parts:
        out += [f"## {part.title}", part.about]
        for made in part.grids:
            out += [f"### {made.title}", made.about, formats.markdown(made)]
        out += [f"![{picture.title}]({picture.file})" for picture in part.pictures]
    shown = [v for rows in studies.values() for row in rows for v in published.accuracies(row.label, [row.task])]
    shown += [value for paper in paper_tables.PAPERS for value in paper_tables.printed(paper)]
    out += ["## Notes on published values", "\n".join(published.notes(shown))]
    return "\n\n".join(out) + "\n"
