"""Learning curves from metrics.csv: of one seed, and over the seeds of a row."""

from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

from ..disk import checksums
from ..runs import record
from .summary import Row


class Curve(NamedTuple):
    """Dev scores of a label over steps: mean, and mean ± sample standard deviation over its ``n`` seeds."""

    label: str
    steps: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]
    n: int


def read(folder: Path) -> dict[str, dict[int, float]]:
    """{column: {step: value}} of a run, empty where it never had metrics.csv; ValueError where that is not a table."""
    if not checksums.expected(folder / record.METRICS):
        return {}
    try:
        rows = record.evaluations(folder)
    except ValueError as error:
        raise ValueError(f"{error}, no curve is drawn of it") from None
    names = [name for name in (rows[0] if rows else {}) if name != "step"]
    return {name: {int(row["step"]): row[name] for row in rows} for name in names}


def over_seeds(row: Row, runs: dict[Path, dict[str, dict[int, float]]]) -> Curve | None:
    """Mean and spread at the steps that every finished seed has; None where no finished seed has a curve."""
    seeds = [runs[folder]["val"] for folder, r in row.runs.items() if r.status == "done" and runs[folder].get("val")]
    steps = sorted(set.intersection(*map(set, seeds))) if seeds else []
    if not steps:
        return None
    at = [[seed[step] for seed in seeds] for step in steps]
    middle = [mean(values) for values in at]
    spread = [stdev(values) if len(values) > 1 else 0.0 for values in at]
    low, high = ([m + sign * s for m, s in zip(middle, spread, strict=True)] for sign in (-1, 1))
    return Curve(row.label, steps, middle, low, high, len(seeds))


class Bubble(NamedTuple):
    """A label on one task and device: milliseconds a step, test score, peak bytes (None where not counted)."""

    label: str
    ms: float
    test: float
    std: float | None
    n: int
    peak: float | None


def bubbles(rows: list[Row]) -> dict[tuple[str, str], list[Bubble]]:
    """By (task, device), those with two or more labels to compare."""
    found: dict[tuple[str, str], list[Bubble]] = {}
    for row in rows:
        if row.ms and row.test is not None:
            bubble = Bubble(row.label, row.ms, row.test, row.std, row.n, row.peak)
            found.setdefault((row.task, row.facts["device"]), []).append(bubble)
    return {place: group for place, group in found.items() if len(group) > 1}
