"""The record of the probes of a run, probes.json, and the records of many runs in one file, probes.jsonl."""

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import pandas as pd
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from ...console import log
from ...io import atomic, lock, typed_json
from ...io.atomic import Unreadable
from ...io.typed_json import FolderName, Percent
from ...ops.metrics import Metric
from ...runs.record import RunRecord

FOLDER = "probes"
NAME = "probes.json"
# Kind of file and remedy, for error messages.
DESCRIPTION = "a record of probes"
REMEDY = "delete it to repeat the measurement"
# The records of many seeds, one line each: the only file of probes of published runs.
COLLECTION = "probes.jsonl"
# Scores with other mechanisms and over the number of tokens: of one seed in its directory, and as a matrix of all seeds
# in the directory of the study.
SWAPS = "swaps.csv"
FILLED = "filled.csv"


@dataclass(frozen=True, kw_only=True)
class Probes:
    """Scores and derivatives of a trained model over its reach.

    Args:
        examples, score: number of test examples that were scored, and the model's score on them.
        by: confinement method of the layers, see ``local_window.confinement``; None if they have none in common.
        reaches: values of the reach k, in increasing order.
        scores: scores with each layer confined to k; None without a confinement method.
        beyond: share of the squared derivatives of the last hidden states that belongs to inputs further away than k;
            None if no derivatives were taken.
        derived, rows: number of examples for the derivatives, and number of positions of each sequence.
        weights: sha256 of ``best.ckpt``; None in early records.
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
    weights: str | None = None


def folder(runs: Path, r: RunRecord | Probes) -> Path:
    """Return the directory of the probes of a seed."""
    return runs / FOLDER / r.study / r.task / r.label / f"seed-{r.seed}"


def load(path: Path) -> Probes:
    """Read a record.

    Raises:
        ValueError: the file does not hold a record of probes.
    """
    probes = typed_json.parse(Probes, path, DESCRIPTION, REMEDY)
    if not _is_complete(probes):
        raise ValueError(f"{path} is not {DESCRIPTION} (values are missing); {REMEDY}")
    return probes


def _is_complete(probes: Probes) -> bool:
    """Return whether the record has a score and a share for each reach, if it has any."""
    num_reaches = len(probes.reaches)
    return all(values is None or len(values) == num_reaches for values in (probes.scores, probes.beyond))


def key(r: RunRecord | Probes) -> tuple[str, str, str, int]:
    """Identify a seed among all runs."""
    return r.study, r.task, r.label, r.seed


def load_collection(root: Path) -> dict[tuple[str, str, str, int], Probes]:
    """Read the collected records below a folder of runs by ``key``; empty without a file.

    Args:
        root: folder of all runs, such as runs/published.

    Raises:
        ValueError: a line does not hold a record of probes.
    """
    path = root / FOLDER / COLLECTION
    if not path.exists():
        return {}
    records = {}
    for number, line in enumerate(atomic.content(path).splitlines(), start=1):
        try:
            probes = typed_json.validated(Probes, line)
            if not _is_complete(probes):
                raise Unreadable("values are missing")
        except Unreadable as error:
            raise ValueError(f"{path}, line {number} is not {DESCRIPTION} ({error}); delete the line") from None
        records[key(probes)] = probes
    return records


def collect(records: Iterable[Probes], root: Path) -> Path:
    """Add records to a collection, where they replace earlier records of the same seeds; return the file.

    Args:
        records: records of any studies.
        root: folder of all runs, such as runs/published.

    Raises:
        ValueError: the file does not hold records of probes.
    """
    path = root / FOLDER / COLLECTION
    path.parent.mkdir(parents=True, exist_ok=True)
    # Of two processes that add records at once, the second one waits and reads the file of the first.
    with lock.hold(path.parent / lock.NAME, lambda owner: log(f"waiting for {owner}, which writes {path}")):
        merged = load_collection(root)
        merged.update((key(probes), probes) for probes in records)
        lines = [json.dumps(asdict(merged[name])) + "\n" for name in sorted(merged)]
        atomic.write(path, "".join(lines))
    return path


def means(seeds: list[Probes], values: str) -> pd.Series:
    """Average a field over seeds, ``scores`` or ``beyond``, at the reaches that all seeds have."""
    curves = []
    for probes in seeds:
        curves.append(dict(zip(probes.reaches, getattr(probes, values), strict=True)))
    return pd.DataFrame(curves).dropna(axis=1).mean()


def read_table(path: Path) -> pd.DataFrame:
    """Read ``swaps.csv`` or ``filled.csv``, of a study or of one seed; every cell is text.

    Raises:
        ValueError: the file is not a table with unique names of columns.
    """
    text = atomic.content(path).decode()
    head, *lines = csv.reader(io.StringIO(text, newline=""))
    # At least two columns, whose names are unique.
    is_valid_head = len(head) > 1 and len(set(head)) == len(head)
    if not is_valid_head or any(len(line) != len(head) for line in lines):
        raise ValueError("a column is missing or occurs twice")
    return pd.DataFrame(lines, columns=head)
