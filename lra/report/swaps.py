"""The tables of scores of trained weights with other mechanisms in the place of their own."""

import csv
from pathlib import Path

from ..runs import probes
from .locality import root
from .summary import Row
from .table import Cell, Table, frame, stem


def swaps(study: str, rows: list[Row]) -> list[Table]:
    """Make a table for each task of a study whose runs were swapped.

    Args:
        study: its name.
        rows: its results.
    """
    roots = {root(folder) for row in rows for folder in row.runs}
    paths = {path for home in roots for path in (home / probes.FOLDER / study).glob(f"*/{probes.SWAPS}")}
    return [_table(study, path) for path in sorted(paths)]


def _table(study: str, path: Path) -> Table:
    task = path.parent.name
    with open(path, newline="", encoding="utf-8") as file:
        (first, *names), *lines = csv.reader(file)
    return Table(
        name=stem(f"swaps-{study}-{task}"),
        title=f"Swapped mechanisms: {task}",
        about="Test score of the weights of a run (row) with each mechanism in the place of its own (column), without "
        "training, mean over seeds, on the examples that were scored. own: the run as it is. Empty: the weights do not "
        "fit.",
        cells=frame((first, *names), [[label, *map(_cell, values)] for label, *values in lines]),
        words=(first,),
    )


def _cell(text: str) -> Cell:
    return Cell(text=f"{float(text):.2f}", value=float(text)) if text else Cell()
