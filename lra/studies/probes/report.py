"""The probes in the report: the reach that keeps a mechanism's gain, scores within each reach, and matrices."""

from pathlib import Path
from statistics import median

import numpy as np

from ...console import log
from ...report.results import CONTROL
from ...report.summary import Row
from ...report.table import Cell, Column, Table, frame, stem
from . import record

KEPT = 0.95  # of what a mechanism adds over the control
ABOUT = (
    "locality: the smallest reach k of every layer that keeps "
    f"{KEPT:.0%} of what the mechanism adds over attn=mean, median over seeds (lra.studies.probes)."
)
MATRICES = {
    record.SWAPS: (
        "Swapped mechanisms",
        "Test score of the weights of a run (row) with each mechanism in the place of its own (column), without "
        "training, mean over seeds, on the examples that were scored. own: the run as it is. Empty: the weights do not "
        "fit.",
    ),
    record.FILLED: (
        "Scores over the tokens of a row",
        "Test score of the examples that have, besides padding and filler, as many tokens as the column says or more, "
        "but less than twice as many; mean over seeds. own: all examples that were scored.",
    ),
}


def tables(study: str, rows: list[Row]) -> list[Table]:
    """Make the table of scores within each reach and the matrices, if there are any."""
    return [*within(study, rows), *matrices(study, rows)]


def columns(rows: list[Row]) -> list[Column]:
    """Make the column of localities of a task; none without the control's score on the whole test set or a gain."""
    control = next((row.test for row in rows if row.label == CONTROL), None)
    cells = [_locality(row, control) for row in rows] if control is not None else []
    return [Column("locality", ABOUT, cells)] if any(cell.text for cell in cells) else []


def _locality(row: Row, control: float) -> Cell:
    try:
        found = [smallest(made, control) for made in _probes(row) if made.score > control]
    except ValueError as error:
        return Cell(note=str(error))
    if not found:
        return Cell()
    value = median(found)
    return Cell(text=f"{value:g}", value=value, note=f"of seeds: {', '.join(map(str, found))}")


def smallest(made: record.Probes, base: float) -> int:
    """The first reach from which on each longer one keeps ``KEPT`` of the gain over ``base``, too."""
    wanted = base + KEPT * (made.score - base)
    short = [reach for reach, score in zip(made.reaches, made.scores, strict=True) if score < wanted]
    return min((reach for reach in made.reaches if not short or reach > max(short)), default=made.reaches[-1])


def within(study: str, rows: list[Row]) -> list[Table]:
    """Make the table of scores within each reach, none if no run of the study was probed."""
    found = []
    for row in rows:
        try:
            made = _probes(row)
        except ValueError as error:
            log(f"skipped: {error}")
            continue
        if made:
            found.append((row, [one for one in made if one.reaches == made[0].reaches]))
    if not found:
        return []
    reaches = sorted({reach for _, made in found for reach in made[0].reaches})
    lines = []
    for row, made in found:
        scores = dict(zip(made[0].reaches, np.mean([one.scores for one in made], 0).tolist(), strict=True))
        cells = [_score(scores[reach]) if reach in scores else Cell() for reach in reaches]
        lines.append([row.label, row.task, Cell(text=str(len(made)), value=len(made)), *cells])
    head = ("mechanism", "task", "n", *(f"k = {reach}" for reach in reaches))
    table = Table(
        name=stem(f"locality-{study}"),
        title="Scores within a reach",
        about="Test score of the trained weights if every layer is confined to tokens at most k positions away, mean "
        "over n seeds, on the examples that were probed.",
        cells=frame(head, lines, [(study, row.label, "") for row, _ in found]),
        words=("mechanism", "task"),
    )
    return [table]


def _probes(row: Row) -> list[record.Probes]:
    """Read the probes of a row's finished runs that have scores. Raises ValueError for a damaged record."""
    found = []
    for folder, r in row.runs.items():
        path = record.folder(_root(folder), r.study, r.task, r.label, r.seed) / record.NAME
        if r.status == "done" and path.exists():
            made = record.load(path)
            if made.fingerprint == r.fingerprint and made.scores:
                found.append(made)
    return found


def matrices(study: str, rows: list[Row]) -> list[Table]:
    """Make the tables of a study's matrices, if there are any; a damaged one is skipped with a line."""
    made = []
    roots = sorted({_root(folder) for row in rows for folder in row.runs})
    for path in (root / record.FOLDER / study / name for root in roots for name in MATRICES):
        if path.exists():
            try:
                made.append(matrix_table(study, path))
            except (ValueError, OSError):
                log(f"skipped: {path} is not a matrix of scores; python -m lra.studies.probes makes it again")
    return made


def matrix_table(study: str, path: Path) -> Table:
    """Read a matrix of a study. Raises ValueError if the file holds none."""
    title, about = MATRICES[path.name]
    task, label, own, *names = (found := record.table(path)).columns
    score = lambda text: _score(float(text)) if text else Cell()
    lines = [[of, by, *map(score, values)] for of, by, *values in found.itertuples(index=False)]
    return Table(
        name=stem(f"{path.stem}-{study}"),
        title=title,
        about=about,
        cells=frame((task, label, own, *names), lines),
        words=(task, label),
    )


def _score(value: float) -> Cell:
    return Cell(text=f"{value:.2f}", value=value)


def _root(folder: Path) -> Path:
    """The folder of all runs: a run is <root>/<study>/<task>/<label>/seed-<k>."""
    return folder.parents[3] if len(folder.parents) > 3 else folder
