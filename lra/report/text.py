"""The tables as text: for a terminal, and as Markdown."""

from rich import box
from rich.padding import Padding
from rich.table import Table

from .. import published
from .tables import Row, Section, sections

LEGEND = (
    "Scores in percent. test: mean ± sample standard deviation over n seeds, each at its best dev checkpoint; (+k): k "
    "more seeds without a result, not in the mean; majority: score of the most frequent class, or of the mean label; "
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


def markdown(studies: dict[str, list[Row]]) -> str:
    """The same tables for GitHub, and below them where the published values come from."""
    out = ["# Results", LEGEND]
    for study, rows in studies.items():
        out.append(f"## {study}")
        for section in sections(rows):
            table = [[*section.head, "details", "published"], ["---"] * (len(section.head) + 2)]
            for (label, *cells), _, details, values in section.lines:
                beside = "<br>".join(f"{source}: {value}" for source, value in values)
                table.append([f"`{label}`", *cells, "; ".join(details), beside])
            lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in table]
            out += [f"### {section.title}", section.about, "\n".join(lines)]
    shown = [v for rows in studies.values() for row in rows for v in published.accuracies(row.label, [row.task])]
    if shown:
        out += ["## Published values", "\n".join(published.notes(shown))]
    return "\n\n".join(out) + "\n"
