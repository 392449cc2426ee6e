"""Tables and columns that studies add to the report.

A folder of ``lra.studies`` takes part by having a module ``report`` with two functions: ``tables(rows)`` and
``columns(rows)``.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from ..results.summary import Row
from ..results.table import Column, Table


@cache
def _modules() -> list[ModuleType]:
    paths = sorted(Path(__file__).parents[1].glob("studies/*/report.py"))
    names = [path.parent.name for path in paths]
    return [import_module(f"lra.studies.{name}.report") for name in names]


def tables(rows: list[Row]) -> list[Table]:
    """Make the additional tables over all tasks of a study's runs."""
    added = []
    for module in _modules():
        added += module.tables(rows)
    return added


def columns(rows: list[Row]) -> list[Column]:
    """Make the additional columns of the table of one task, with a cell for each row."""
    added = []
    for module in _modules():
        added += module.columns(rows)
    return added
