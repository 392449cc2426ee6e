"""Probes in the report: locality of mechanisms, scores within each reach, matrices of scores; and their pictures."""

import math
from pathlib import Path
from statistics import median

import pandas as pd

from ...console import log
from ...io import atomic
from ...results.palette import Palette
from ...results.summary import Row
from ...results.table import Cell, Column, Table, frame, show
from ...runs.reader import CONTROL
from ..figures import panels, save
from . import record

# Share of the gain over the control that a mechanism keeps within its locality.
GAIN_SHARE = 0.95
ABOUT = (
    "locality: the smallest reach k of every layer (of MEGA's attention; its moving average is not confined) that "
    f"keeps {GAIN_SHARE:.0%} of what the mechanism adds over attn=mean, median over probed seeds (lra.studies.probes); "
    f"none if {1 - GAIN_SHARE:.0%} of this gain is less than the standard error of a score on the probed examples."
)
MATRICES = {
    record.SWAPS: (
        "Swapped mechanisms",
        "Mean test score over all probed seeds of the trained weights (row) with each mechanism (column), without "
        "training. own: the run's mechanism; empty: the weights do not fit, or some would be untrained.",
    ),
    record.FILLED: (
        "Scores over the number of tokens",
        "Mean test score, over all probed seeds, of the scored examples with at least the given number of tokens and "
        "less than twice as many, padding and filler excluded. own: all scored examples.",
    ),
}
# Percent of MEGA's accuracy that networks of convolutions of width 61 reach (docs/formulas.md, short convolutions).
PERCENT_OF_MEGA = {"listops": 83.51, "text": 94.45, "retrieval": 97.58, "image": 92.46, "pathfinder": 75.28}
CONV_WIDTH = 61


def tables(rows: list[Row]) -> list[Table]:
    """Make the tables of a study: scores within each reach, and matrices of scores, if there are any."""
    return [*reach_tables(rows[0].study, rows), *matrices(rows[0].study, rows)]


def columns(rows: list[Row]) -> list[Column]:
    """Make the column of localities of a task.

    There is no column if the task has no finished control or no row has a locality. The gain is relative to the
    control's score on the whole test set.
    """
    controls = [row.test for row in rows if row.label == CONTROL]
    if not controls or controls[0] is None:
        return []
    # One cell for each row, empty without probes or without a gain.
    cells = [_locality_cell(row, controls[0]) for row in rows]
    if not any(cell.text for cell in cells):
        return []
    return [Column("locality", ABOUT, cells)]


def _locality_cell(row: Row, control: float) -> Cell:
    """Format the median locality of the seeds of a row whose gain over the control is resolved."""
    try:
        seeds = _probes(row)
        localities = [locality(probes, control) for probes in seeds if resolves_gain(probes, control)]
    except ValueError as error:
        return Cell(note=str(error))
    if not localities:
        return Cell()
    value = median(localities)
    return Cell(text=f"{value:g}", value=value, note=f"of seeds: {', '.join(map(str, localities))}")


def resolves_gain(probes: record.Probes, base: float) -> bool:
    """Whether the part of the gain over ``base`` that may be lost is at least the standard error of the score."""
    share = probes.score / 100
    standard_error = 100 * math.sqrt(share * (1 - share) / probes.examples)
    # Seeds without a gain have no locality.
    return probes.score > base and (1 - GAIN_SHARE) * (probes.score - base) >= standard_error


def locality(probes: record.Probes, base: float) -> int:
    """Return the smallest reach such that it and all longer ones keep ``GAIN_SHARE`` of the gain over ``base``.

    If the longest reach does not keep it, the result is the longest reach.
    """
    assert probes.scores is not None, "probes in the report have scores"
    threshold = base + GAIN_SHARE * (probes.score - base)
    # Scores need not rise with the reach, so the longest reach below the threshold decides.
    too_short = 0
    for reach, score in zip(probes.reaches, probes.scores, strict=True):
        if score < threshold:
            too_short = reach
    longer = [reach for reach in probes.reaches if reach > too_short]
    return min(longer, default=probes.reaches[-1])


def reach_tables(study: str, rows: list[Row]) -> list[Table]:
    """Make the table of scores within each reach; an empty list if no run of the study was probed."""
    # Rows with probes, the number of their seeds, and their mean scores by reach.
    probed = []
    for row in rows:
        try:
            seeds = _probes(row)
        except ValueError as error:
            log(f"skipped: {error}")
            continue
        if seeds:
            probed.append((row, len(seeds), record.means(seeds, "scores")))
    if not probed:
        return []

    # Runs may have been probed at different lengths.
    every_reach: set[int] = set()
    for _, _, scores in probed:
        every_reach.update(scores.index)
    reaches = sorted(every_reach)
    lines: list[list[Cell | str]] = []
    keys = []
    for row, num_seeds, scores in probed:
        cells = [_cell(score) for score in scores.reindex(reaches)]
        lines.append([row.label, row.task, Cell.of(num_seeds, str), *cells])
        keys.append((study, row.label, ""))
    head = ("mechanism", "task", "n", *(f"k = {reach}" for reach in reaches))
    table = Table(
        name=f"locality/{study}",
        title="Scores within a reach",
        about="Mean test score over n seeds of the trained weights with every layer confined to tokens at most k "
        "positions away (MEGA: its attention, not its moving average), on the probed examples.",
        cells=frame(head, lines, keys),
        words=("mechanism", "task"),
    )
    return [table]


def _probes(row: Row) -> list[record.Probes]:
    """Read the probes with scores of a row's finished runs. Raises ValueError for a damaged record."""
    seeds = []
    collections = {root: record.load_collection(root) for root in set(map(_root, row.runs))}
    for run_dir, r in row.runs.items():
        if r.status != "done":
            continue
        root = _root(run_dir)
        path = record.folder(root, r) / record.NAME
        probes = record.load(path) if path.exists() else collections[root].get(record.key(r))
        # Probes of an earlier run with other options do not count.
        if probes is not None and probes.fingerprint == r.fingerprint and probes.scores:
            seeds.append(probes)
    return seeds


def matrices(study: str, rows: list[Row]) -> list[Table]:
    """Make the tables of a study's matrices, if there are any; logs and skips a damaged one."""
    # Runs of several directories may be shown together.
    roots: set[Path] = set()
    for row in rows:
        roots.update(map(_root, row.runs))
    paths = [root / record.FOLDER / study / name for root in sorted(roots) for name in MATRICES]
    matrix_tables = []
    for path in paths:
        if not path.exists():
            continue
        try:
            matrix_tables.append(matrix_table(study, path))
        except (ValueError, OSError):
            log(f"skipped: {path} is not a matrix of scores; lra study probes writes it again")
    return matrix_tables


def matrix_table(study: str, path: Path) -> Table:
    """Read a matrix of a study.

    Raises:
        ValueError: the file does not hold a matrix.
    """
    title, about = MATRICES[path.name]
    scores = record.read_table(path)
    # Two columns of names, the run's own score, then one column for each mechanism or number of tokens.
    task, label, own, *names = scores.columns
    # The filter of the page finds a line by its label.
    keys = [("", "", name) for name in scores[label]]
    lines = []
    # An empty text is a cell without a score.
    for task_name, label_name, *texts in scores.to_numpy():
        cells = [_cell(float(text or "nan")) for text in texts]
        lines.append([task_name, label_name, *cells])
    cells = frame((task, label, own, *names), lines, keys)
    return Table(name=f"{path.stem}/{study}", title=title, about=about, cells=cells, words=(task, label))


def _cell(value: float) -> Cell:
    return Cell() if pd.isna(value) else Cell.of(value)


def _root(run_dir: Path) -> Path:
    """Return the directory of all runs: a run is <root>/<study>/<task>/<label>/seed-<k>."""
    return run_dir.parents[3] if len(run_dir.parents) > 3 else run_dir


def draw(home: Path) -> list[Path]:
    """Draw all probes of a task: for each label, means over its seeds of scores within and derivatives beyond a reach.

    Args:
        home: directory of the task below ``runs/probes/<study>``.

    Returns:
        The path of the picture, as a list of one.
    """
    by_label: dict[str, list[record.Probes]] = {}
    for path in sorted(home.glob(f"*/seed-*/{record.NAME}")):
        label = path.parts[-3]
        by_label.setdefault(label, []).append(record.load(path))

    # Left: scores within a reach. Right: derivatives beyond it.
    palette = Palette(by_label)
    figure, (left, right) = panels(2, width=5, height=4)
    for label, seeds in by_label.items():
        style = palette.line(label) | {"marker": "o", "markersize": 3, "linewidth": 1.2}
        for axes, values in ((left, "scores"), (right, "beyond")):
            if all(getattr(probes, values) for probes in seeds):
                axes.plot(record.means(seeds, values), label=f"{label} (n = {len(seeds)})", **style)

    # All probes of a task have the same metric.
    example = next(iter(by_label.values()))[0]
    left.set_ylabel(f"test {example.metric} within the reach, %")
    right.set(ylabel="squared derivatives beyond the distance, share", ylim=(0, 1))
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.axvline(CONV_WIDTH // 2, color="grey", linestyle=":", linewidth=1)
    left.set_xlabel("reach k: each layer sees |i - j| <= k")
    right.set_xlabel("distance k, all layers unconfined")

    # The published accuracy of local convolutions relative to MEGA, next to the line of their reach.
    share = PERCENT_OF_MEGA.get(example.task)
    if share:
        left.annotate(
            f"convolutions of width {CONV_WIDTH}:\n{share} % of MEGA's (published)",
            (CONV_WIDTH // 2, 0.02),
            xycoords=("data", "axes fraction"),
            fontsize=7,
            color="grey",
        )
    num_examples = max(probes.examples for seeds in by_label.values() for probes in seeds)
    title = f"{example.study}: {example.task}, scores on at most {num_examples} test examples"
    return [save(figure, home / "probes.png", title, loc="outside lower center", ncols=3)]


def write_matrix(home: Path, name: str, settings: dict[str, str]) -> list[Path]:
    """Average the score files ``name`` of a study over seeds; returns the paths of the Markdown and the CSV table.

    Args:
        home: directory of the study.
        name: name of the files.
        settings: values of the columns that all lines have in common, such as the number of examples; a file with other
            values is logged and left out.

    Raises:
        ValueError: a file does not hold a line of scores.
    """
    lines = []
    for path in sorted(home.glob(f"*/*/seed-*/{name}")):
        task_and_label = (path.parents[2].name, path.parents[1].name)
        try:
            table = record.read_table(path).set_index("scored with")
            scores = table["score"].astype(float)
        except (ValueError, KeyError):
            raise ValueError(f"{path} is not a line of scores; delete it to score that seed again") from None
        # Files of earlier versions lack the columns of the settings.
        recorded = table.reindex(columns=list(settings))
        if (recorded != pd.Series(settings)).any(axis=None):
            text = " ".join(f"{key}={value or 'null'}" for key, value in settings.items())
            log(f"left out: {path} was not scored with {text}; score that run again")
            continue
        lines.append(scores.rename(task_and_label))

    # A row for each seed, then the mean for each task and label.
    seeds = pd.DataFrame(lines).rename_axis(["task", "trained with"])
    # Numbers of tokens in increasing order after ``own``; names of mechanisms in the order of their first appearance.
    columns = sorted(seeds.columns, key=lambda name: int(name) if name.isdigit() else 0)
    seeds = seeds[columns]
    by_row = seeds.groupby(level=[0, 1], sort=False)
    means = _without_partial(by_row.mean(), by_row.count(), by_row.size())
    path = home / name
    atomic.write(path, means.to_csv(lineterminator="\n"))
    # The Markdown file is rendered from the CSV file, as in the report.
    markdown = matrix_table(home.name, path)
    atomic.write(path.with_suffix(".md"), markdown.section() + "\n")
    show([markdown], "")
    return [path.with_suffix(".md"), path]


def _without_partial(means: pd.DataFrame, counts: pd.DataFrame, num_seeds: pd.Series) -> pd.DataFrame:
    """Empty the means that only some seeds of a row have, which are not comparable with the others; logs each."""
    is_partial = counts.gt(0) & counts.lt(num_seeds, axis=0)
    for column in means.columns[is_partial.any()]:
        for task, label in means.index[is_partial[column]]:
            log(f"left out: {task} {label} has scores of {column} for some seeds only; score all of its seeds again")
    return means.mask(is_partial)
