"""The tables and columns that studies below ``lra.studies`` add to the report."""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Protocol

from .summary import Row
from .table import Column, Table


class Extension(Protocol):
    """The module ``report`` of a study. Its file is its registration."""

    def tables(self, study: str, rows: list[Row]) -> list[Table]:
        """Make further tables over all tasks of a study's runs."""

    def columns(self, rows: list[Row]) -> list[Column]:
        """Make further columns of the table of one task, with a cell for each row."""


@cache
def extensions() -> list[Extension]:
    """Import the extensions, in the order of their names."""
    paths = sorted(Path(__file__).parents[1].glob("studies/*/report.py"))
    return [import_module(f"lra.studies.{path.parent.name}.report") for path in paths]
