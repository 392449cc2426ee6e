"""metrics.csv: one line per evaluation of a run."""

import csv
import io
import itertools
import math
from pathlib import Path

import pandas as pd

from ..disk.atomic import Unreadable, content
from ..disk.typed_json import verify

NAME = "metrics.csv"


def read(folder: Path) -> list[dict[str, float]]:
    """Read the evaluations of a run.

    Args:
        folder: run directory with a metrics.csv.

    Returns:
        One dict per evaluation: ``step`` (int) and the other columns (float).

    Raises:
        ValueError: the file is not a table of evaluations.
    """
    path = folder / NAME
    try:
        # The file may come from somebody else: checksum, table, numbers, values.
        verify(path)
        text = content(path).decode()
        table = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        evaluations = [_parse_line(line) for line in table]
        _check(evaluations)
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        reason = str(error) if isinstance(error, Unreadable) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is not a table of evaluations ({reason})") from None
    return [evaluation | {"step": int(evaluation["step"])} for evaluation in evaluations]


def _parse_line(line: dict[str, str]) -> dict[str, float]:
    return {name: float(cell) for name, cell in line.items()}


def _check(evaluations: list[dict[str, float]]) -> None:
    """Raise Unreadable unless values are finite, scores are there and steps are whole numbers in rising order."""
    for evaluation in evaluations:
        if not all(math.isfinite(value) for value in evaluation.values()):
            raise Unreadable("a cell is no finite number")
    if not evaluations or not {"train_loss", "val"} <= evaluations[0].keys():
        raise Unreadable("it has no scores")
    # Steps are floats here, as all cells.
    steps = [evaluation["step"] for evaluation in evaluations]
    is_fractional = any(step % 1 for step in steps)
    if is_fractional or any(later <= earlier for earlier, later in itertools.pairwise(steps)):
        raise Unreadable("its steps are no whole numbers that rise")


def format_csv(evaluations: list[dict[str, float]]) -> str:
    """Format evaluations as metrics.csv, with the columns of the last one."""
    table = pd.DataFrame(evaluations, columns=list(evaluations[-1]))
    return table.to_csv(index=False, lineterminator="\n")
