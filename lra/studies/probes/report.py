"""The probes in the report: the reach that keeps a mechanism's gain, scores within each reach, matrices; pictures."""

from pathlib import Path
from statistics import median

import pandas as pd

from ...console import log
from ...disk import atomic
from ...report.palette import Palette
from ...report.results import CONTROL
from ...report.summary import Row
from ...report.table import Cell, Column, Table, frame, show
from ..figures import panels, save
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
# Percent of MEGA's accuracy that networks of convolutions of width 61 have (docs/formulas.md, short convolutions).
PUBLISHED = {"listops": 83.51, "text": 94.45, "retrieval": 97.58, "image": 92.46, "pathfinder": 75.28}
WIDTH = 61


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
            if made := _probes(row):
                found.append((row, made, record.means(made, "scores")))
        except ValueError as error:
            log(f"skipped: {error}")
    if not found:
        return []
    reaches = sorted({reach for *_, scores in found for reach in scores.index})
    lines = [
        [row.label, row.task, Cell.of(len(made), str), *map(_cell, scores.reindex(reaches))]
        for row, made, scores in found
    ]
    head = ("mechanism", "task", "n", *(f"k = {reach}" for reach in reaches))
    table = Table(
        name=f"locality/{study}",
        title="Scores within a reach",
        about="Test score of the trained weights if every layer is confined to tokens at most k positions away, mean "
        "over n seeds, on the examples that were probed.",
        cells=frame(head, lines, [(study, row.label, "") for row, *_ in found]),
        words=("mechanism", "task"),
    )
    return [table]


def _probes(row: Row) -> list[record.Probes]:
    """Read the probes of a row's finished runs that have scores. Raises ValueError for a damaged record."""
    found = []
    for folder, r in row.runs.items():
        path = record.folder(_root(folder), r) / record.NAME
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
    lines = [[of, by, *(_cell(float(text or "nan")) for text in texts)] for of, by, *texts in found.to_numpy()]
    cells = frame((task, label, own, *names), lines)
    return Table(name=f"{path.stem}/{study}", title=title, about=about, cells=cells, words=(task, label))


def _cell(value: float) -> Cell:
    return Cell() if pd.isna(value) else Cell.of(value)


def _root(folder: Path) -> Path:
    """The folder of all runs: a run is <root>/<study>/<task>/<label>/seed-<k>."""
    return folder.parents[3] if len(folder.parents) > 3 else folder


def draw(home: Path) -> list[Path]:
    """Draw every probe of a study and task, a line for each label, means over its seeds; returns the picture."""
    found: dict[str, list[record.Probes]] = {}
    for path in sorted(home.glob(f"*/seed-*/{record.NAME}")):
        found.setdefault(path.parts[-3], []).append(record.load(path))
    palette = Palette(found)
    figure, (left, right) = panels(2, width=5, height=4)
    for label, some in found.items():
        style = palette.line(label) | {"marker": "o", "markersize": 3, "linewidth": 1.2}
        for axes, values in ((left, "scores"), (right, "beyond")):
            if all(getattr(made, values) for made in some):
                axes.plot(record.means(some, values), label=f"{label} (n = {len(some)})", **style)
    some = next(iter(found.values()))[0]
    left.set_ylabel(f"test {some.metric} within the reach, %")
    right.set(ylabel="squared derivatives beyond the reach, share", ylim=(0, 1))
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("reach k: each layer sees |i - j| <= k")
        axes.axvline(WIDTH // 2, color="grey", linestyle=":", linewidth=1)
    if share := PUBLISHED.get(some.task):
        note = f"convolutions of width {WIDTH}:\n{share} % of MEGA's (published)"
        left.annotate(note, (WIDTH // 2, 0.02), xycoords=("data", "axes fraction"), fontsize=7, color="grey")
    left.legend(fontsize=7)
    return [save(figure, home / "probes.png", f"{some.study}: {some.task}, {some.examples} test examples")]


def matrix(home: Path, name: str) -> list[Path]:
    """Average the lines of a name in the folder of a study over seeds; returns the table as Markdown and as CSV."""
    lines = []
    for path in sorted(home.glob(f"*/*/seed-*/{name}")):
        names = (path.parents[2].name, path.parents[1].name)
        try:
            lines.append(record.table(path).set_index("scored with").score.astype(float).rename(names))
        except (ValueError, KeyError):
            raise ValueError(f"{path} is not a line of scores; delete it to score that seed again") from None
    table = pd.DataFrame(lines).rename_axis(["task", "trained with"]).groupby(level=[0, 1], sort=False).mean()
    path = home / name
    atomic.write(path, table.to_csv(lineterminator="\n"))
    shown = matrix_table(home.name, path)
    atomic.write(path.with_suffix(".md"), shown.section() + "\n")
    show([shown], "")
    return [path.with_suffix(".md"), path]
