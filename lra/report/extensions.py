"""The tables and columns that studies add by a module ``report`` with these two functions; its file registers it."""

from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from .summary import Row
from .table import Column, Table


@cache
def _modules() -> list[ModuleType]:
    paths = sorted(Path(__file__).parents[1].glob("studies/*/report.py"))
    return [import_module(f"lra.studies.{path.parent.name}.report") for path in paths]


def tables(rows: list[Row]) -> list[Table]:
    """Make the further tables over all tasks of a study's runs."""
    return [table for module in _modules() for table in module.tables(rows[0].study, rows)]


def columns(rows: list[Row]) -> list[Column]:
    """Make the further columns of the table of one task, with a cell for each row."""
    return [column for module in _modules() for column in module.columns(rows)]
