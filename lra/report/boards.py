"""One table for a study, mechanisms by tasks, and one for each of its tasks with everything that is known."""

import re
from dataclasses import replace
from statistics import mean

from .grid import MARKS, Cell, Entry, Grid, mark, score
from .summary import Row, Section


def board(study: str, rows: list[Row]) -> Grid:
    """Test scores, a line for each label and a column for each task; the last column is their mean over seeds.

    The mean is there for labels with a result on every task of the study; its deviation and test need the same seeds
    on all of them.
    """
    tasks = list(dict.fromkeys(row.task for row in rows))
    labels = list(dict.fromkeys(row.label for row in sorted(rows, key=lambda row: row.label)))
    found = {(row.label, row.task): row for row in rows}
    columns = []
    for task in tasks:
        mine = [found.get((label, task)) for label in labels]
        scores = [row.scores if row else {} for row in mine]
        columns.append(mark([cell(row) for row in mine], scores))
    if len(tasks) > 1 and {row.facts["metric"] for row in rows} == {"accuracy"}:
        mine = [[found.get((label, task)) for task in tasks] for label in labels]
        columns.append(mark([average(rows) for rows in mine], [over_tasks(rows) for rows in mine]))
    words = sorted({f"{key} {row.facts[key]}" for row in rows for key in ("protocol", "budget")})
    counts = sorted({cell.n for column in columns for cell in column if cell.n})
    seeds = f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}" if counts else "no seed done"
    return Grid(
        name=stem(f"study-{study}"),
        title=study,
        about=f"Test scores, mean ± sample standard deviation over seeds ({seeds}); {', '.join(words)}. {MARKS}",
        head=("mechanism", *tasks, "mean")[: 1 + len(columns)],
        entries=[
            Entry([Cell(text=label), *cells], study, label) for label, *cells in zip(labels, *columns, strict=True)
        ],
    )


def cell(row: Row | None) -> Cell:
    """The score of a row, linked to its runs."""
    return replace(score(row.scores, row.lost), link=place(row)) if row else Cell()


def place(row: Row) -> str:
    """The id of a row's runs in the page."""
    return f"run-{next(iter(row.runs.values())).study}-{row.task}-{row.label}"


def over_tasks(rows: list[Row | None]) -> dict[int, float]:
    """Mean over tasks for each seed; nothing where a task is missing or has other seeds than the first."""
    if not all(rows) or any(row.scores.keys() != rows[0].scores.keys() for row in rows):
        return {}
    return {seed: mean(row.scores[seed] for row in rows) for seed in rows[0].scores}


def average(rows: list[Row | None]) -> Cell:
    """The mean of the tasks' means, empty where one is missing."""
    if scores := over_tasks(rows):
        return score(scores)
    if not all(row and row.scores for row in rows):
        return Cell()
    value = mean(row.test for row in rows)
    return Cell(text=f"{value:.2f}", value=value, note="the tasks have different seeds")


def details(study: str, section: Section) -> Grid:
    """A section of ``tables`` as a grid, with what is published in a column of its own."""
    entries = []
    for line in section.lines:
        beside = "\n".join(f"{source}: {value}" for source, value in line.published)
        numbers = [Cell(text=text, value=leading(text)) for text in line.cells]
        entries.append(Entry([*numbers, Cell(text="; ".join(line.details)), Cell(text=beside)], study, line.cells[0]))
    head = (*section.head, "details", "published")
    return Grid(stem(f"{study}-{section.title}"), section.title, section.about, head, entries, prose=2)


def stem(text: str) -> str:
    """What a file can be called."""
    return re.sub(r"[^\w.-]+", "-", text)


def leading(text: str) -> float | None:
    """The number that a cell begins with, thousands separators left out."""
    found = re.match(r"-?\d[\d,]*(\.\d+)?", text)
    return float(found[0].replace(",", "")) if found else None
