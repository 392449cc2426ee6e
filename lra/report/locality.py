"""The reach that a mechanism needs for what it adds over the control, from the probes of its runs."""

import contextlib
from pathlib import Path
from statistics import mean, median

from ..runs import probes
from .summary import Row
from .table import Cell, Table, frame, stem

KEPT = 0.95  # of what a mechanism adds over the control
ABOUT = (
    "locality: the smallest reach k of every layer that keeps "
    f"{KEPT:.0%} of what the mechanism adds over attn=mean, median over seeds (lra.studies.probes)."
)


def locality(row: Row, control: Row | None) -> Cell:
    """The cell of a row, empty without probes, control or gain; the control's score is of the whole test set."""
    if control is None or not control.scores:
        return Cell()
    try:
        found = [smallest(made, control.test) for made in _probes(row) if made.score > control.test]
    except ValueError as error:
        return Cell(note=str(error))
    if not found:
        return Cell()
    value = median(found)
    return Cell(text=f"{value:g}", value=value, note=f"of seeds: {', '.join(map(str, found))}")


def within(study: str, rows: list[Row]) -> Table | None:
    """Make the table of scores within each reach, None if no run of the study was probed.

    Args:
        study: its name.
        rows: its results.
    """
    found = []
    for row in rows:
        with contextlib.suppress(ValueError):  # its cell in the table of the task says so
            if made := _probes(row):
                found.append((row, [one for one in made if one.reaches == made[0].reaches]))
    if not found:
        return None
    columns = sorted({reach for _, made in found for reach in made[0].reaches})
    lines = []
    for row, made in found:
        scores = dict(zip(made[0].reaches, zip(*(one.scores for one in made), strict=True), strict=True))
        cells = [_score(mean(scores[reach])) if reach in scores else Cell() for reach in columns]
        lines.append([row.label, row.task, Cell(text=str(len(made)), value=len(made)), *cells])
    return Table(
        name=stem(f"locality-{study}"),
        title="Scores within a reach",
        about="Test score of the trained weights if every layer is confined to tokens at most k positions away, mean "
        "over n seeds, on the examples that were probed.",
        cells=frame(
            ("mechanism", "task", "n", *(f"k = {reach}" for reach in columns)),
            lines,
            [(study, row.label, "") for row, _ in found],
        ),
        words=("mechanism", "task"),
    )


def _probes(row: Row) -> list[probes.Probes]:
    """Read the probes of a row's finished runs that have scores. Raises ValueError for a damaged record."""
    found = []
    for folder, r in row.runs.items():
        path = probes.folder(root(folder), r.study, r.task, r.label, r.seed) / probes.NAME
        if r.status == "done" and path.exists():
            made = probes.load(path)
            if made.fingerprint == r.fingerprint and made.scores:
                found.append(made)
    return found


def _score(value: float) -> Cell:
    return Cell(text=f"{value:.2f}", value=value)


def smallest(made: probes.Probes, base: float) -> int:
    """The first reach from which on each longer one keeps ``KEPT`` of the gain over ``base``, too."""
    wanted = base + KEPT * (made.score - base)
    short = [reach for reach, score in zip(made.reaches, made.scores, strict=True) if score < wanted]
    return min((reach for reach in made.reaches if not short or reach > max(short)), default=made.reaches[-1])


def root(folder: Path) -> Path:
    """The folder of all runs: a run is <root>/<study>/<task>/<label>/seed-<k>."""
    return folder.parents[3] if len(folder.parents) > 3 else folder
