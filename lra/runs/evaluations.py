"""metrics.csv: a row for each evaluation of a run."""

import csv
import io
import itertools
import math
from pathlib import Path

import pandas as pd

from ..disk.atomic import Unreadable, content
from .typed_json import verify

NAME = "metrics.csv"


def read(folder: Path) -> list[dict[str, float]]:
    """Read the rows of metrics.csv. Raises ValueError if it is not a table of evaluations."""
    path = folder / NAME
    try:
        verify(path)
        table = csv.DictReader(io.StringIO(content(path).decode(), newline=""), strict=True)
        rows = [{name: float(cell) for name, cell in row.items()} for row in table]
        if not all(math.isfinite(value) for row in rows for value in row.values()):
            raise Unreadable("a cell is no finite number")
        if not rows or not {"train_loss", "val"} <= rows[0].keys():
            raise Unreadable("it has no scores")
        if any(row["step"] % 1 for row in rows) or any(b["step"] <= a["step"] for a, b in itertools.pairwise(rows)):
            raise Unreadable("its steps are no whole numbers that rise")
        return [row | {"step": int(row["step"])} for row in rows]
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        reason = str(error) if isinstance(error, Unreadable) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is not a table of evaluations ({reason})") from None


def text(rows: list[dict[str, float]]) -> str:
    """Format rows as metrics.csv, with the columns of the last one."""
    return pd.DataFrame(rows, columns=list(rows[-1])).to_csv(index=False, lineterminator="\n")
