"""The record of the probes of a run: probes.json."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from ...disk import atomic, typed_json
from ...disk.typed_json import FolderName, Percent
from ...ops.metrics import Metric
from ...runs.record import RunRecord

FOLDER, NAME = "probes", "probes.json"
KIND = "a record of probes", "delete it to make it again"
SWAPS, FILLED = "swaps.csv", "filled.csv"  # a line of a matrix in the folder of a seed, the matrix in that of the study


@dataclass(frozen=True, kw_only=True)
class Probes:
    """The reach of a trained model.

    Args:
        examples, score: number of test examples that were scored, and the score of the model on them.
        by: mask | map | kernel: means by which the layers are confined; None if they cannot be.
        reaches: values of k.
        scores: scores with each layer confined to k; None if it cannot be.
        beyond: share of the squared derivatives of the last rows that belongs to inputs further away than k; None if
            no derivatives were taken.
        derived, rows: number of examples for the derivatives, and of rows of each example.
    """

    __pydantic_config__ = typed_json.STRICT
    kind: str = "probes"
    study: FolderName
    task: FolderName
    label: FolderName
    seed: NonNegativeInt
    fingerprint: str
    git: str | None
    metric: Metric
    examples: PositiveInt
    score: Percent
    by: Literal["mask", "map", "kernel"] | None
    reaches: list[PositiveInt]
    scores: list[Percent] | None
    beyond: list[NonNegativeFloat] | None
    derived: NonNegativeInt
    rows: PositiveInt


def folder(runs: Path, r: RunRecord | Probes) -> Path:
    """The folder of the probes of a seed."""
    return runs / FOLDER / r.study / r.task / r.label / f"seed-{r.seed}"


def load(path: Path) -> Probes:
    """Read a record. Raises ValueError if the file is not one."""
    made = typed_json.parse(Probes, path, *KIND)
    if any(len(x) != len(made.reaches) for x in (made.scores, made.beyond) if x is not None):
        raise ValueError(f"{path} is not {KIND[0]} (values are missing); {KIND[1]}")
    return made


def means(made: list[Probes], values: str) -> pd.Series:
    """Average ``scores`` or ``beyond`` of seeds by reach, for the reaches that all of them have."""
    curves = [dict(zip(one.reaches, getattr(one, values), strict=True)) for one in made]
    return pd.DataFrame(curves).dropna(axis=1).mean()


def table(path: Path) -> pd.DataFrame:
    """Read a matrix, or a line of it, as texts. Raises ValueError if the file holds none."""
    head, *lines = csv.reader(io.StringIO(atomic.content(path).decode(), newline=""))
    if not 1 < len(set(head)) == len(head) or any(len(line) != len(head) for line in lines):
        raise ValueError("columns are missing or there twice")
    return pd.DataFrame(lines, columns=head)
