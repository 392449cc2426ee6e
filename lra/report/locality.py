"""The reach that a mechanism needs for what it adds over the control, from the probes of its runs."""

from pathlib import Path
from statistics import median

from ..runs import probes
from .summary import Row
from .table import Cell

KEPT = 0.95  # of what a mechanism adds over the control
ABOUT = (
    "locality: the smallest reach k of every layer that keeps "
    f"{KEPT:.0%} of what the mechanism adds over attn=mean, median over seeds (lra.studies.probes)."
)


def locality(row: Row, control: Row | None) -> Cell:
    """The cell of a row, empty without probes, control or gain; the control's score is of the whole test set."""
    if control is None or not control.scores:
        return Cell()
    base, found = control.test, []
    for folder, r in row.runs.items():
        path = probes.folder(_root(folder), r.study, r.task, r.label, r.seed) / probes.NAME
        if r.status != "done" or not path.exists():
            continue
        try:
            made = probes.load(path)
        except ValueError as error:
            return Cell(note=str(error))
        if made.fingerprint == r.fingerprint and made.scores and made.score > base:
            found.append(smallest(made, base))
    if not found:
        return Cell()
    value = median(found)
    return Cell(text=f"{value:g}", value=value, note=f"of seeds: {', '.join(map(str, found))}")


def smallest(made: probes.Probes, base: float) -> int:
    """The first reach from which on each longer one keeps ``KEPT`` of the gain over ``base``, too."""
    wanted = base + KEPT * (made.score - base)
    short = [reach for reach, score in zip(made.reaches, made.scores, strict=True) if score < wanted]
    return min((reach for reach in made.reaches if not short or reach > max(short)), default=made.reaches[-1])


def _root(folder: Path) -> Path:
    """The folder of all runs: a run is <root>/<study>/<task>/<label>/seed-<k>."""
    return folder.parents[3] if len(folder.parents) > 3 else folder
