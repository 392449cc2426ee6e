"""The tables of scores of trained weights with other mechanisms in the place of their own."""

import csv
from pathlib import Path

from ..console import log
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
    tables = []
    for path in sorted(paths):
        try:
            tables.append(_table(study, path))
        except (ValueError, OSError, csv.Error):
            log(f"skipped: {path} is not a table of swaps; python -m lra.studies.probes makes it again")
    return tables


def _table(study: str, path: Path) -> Table:
    task = path.parent.name
    with open(path, newline="", encoding="utf-8") as file:
        (first, *names), *lines = csv.reader(file, strict=True)
    if not 0 < len(set(names)) == len(names) or any(len(line) != 1 + len(names) for line in lines):
        raise ValueError("columns are missing or there twice")
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
