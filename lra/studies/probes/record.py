"""The record of the probes of a run: probes.json."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from ...io import atomic, typed_json
from ...io.typed_json import FolderName, Percent
from ...ops.metrics import Metric
from ...runs.record import RunRecord

FOLDER = "probes"
NAME = "probes.json"
KIND = ("a record of probes", "delete it to make it again")
# A line of a matrix in the directory of a seed, and the whole matrix in the directory of the study.
SWAPS = "swaps.csv"
FILLED = "filled.csv"


@dataclass(frozen=True, kw_only=True)
class Probes:
    """Scores and derivatives of a trained model over its reach.

    Args:
        examples, score: number of test examples that were scored, and the model's score on them.
        by: mask | map | kernel: confinement method of the layers; None if they have none in common.
        reaches: values of k.
        scores: scores with each layer confined to k; None without a confinement method.
        beyond: share of the squared derivatives of the last hidden states that belongs to inputs further away than k;
            None if no derivatives were taken.
        derived, rows: number of examples for the derivatives, and of positions of each example.
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
    """Return the directory of the probes of a seed."""
    return runs / FOLDER / r.study / r.task / r.label / f"seed-{r.seed}"


def load(path: Path) -> Probes:
    """Read a record.

    Raises:
        ValueError: the file does not hold a record of probes.
    """
    probes = typed_json.parse(Probes, path, *KIND)
    num_reaches = len(probes.reaches)
    # One value for each reach.
    for values in (probes.scores, probes.beyond):
        if values is not None and len(values) != num_reaches:
            raise ValueError(f"{path} is not {KIND[0]} (values are missing); {KIND[1]}")
    return probes


def means(seeds: list[Probes], values: str) -> pd.Series:
    """Average ``scores`` or ``beyond`` over seeds, for the reaches that all of them have."""
    curves = []
    for probes in seeds:
        curves.append(dict(zip(probes.reaches, getattr(probes, values), strict=True)))
    return pd.DataFrame(curves).dropna(axis=1).mean()


def table(path: Path) -> pd.DataFrame:
    """Read a matrix, or a line of it, as texts.

    Raises:
        ValueError: the file does not hold a matrix.
    """
    text = atomic.content(path).decode()
    head, *lines = csv.reader(io.StringIO(text, newline=""))
    # Names of columns are unique, and there are at least two.
    is_valid_head = 1 < len(set(head)) == len(head)
    if not is_valid_head or any(len(line) != len(head) for line in lines):
        raise ValueError("columns are missing or there twice")
    return pd.DataFrame(lines, columns=head)
