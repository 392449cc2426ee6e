"""The figures of the chapter on efficiency: time and memory over n, growth, speed against accuracy."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from ..names import unique_names
from ..results import figures
from ..results.palette import Palette
from ..results.summary import Row
from ..runs.bench_record import BenchRecord, BenchRow
from .bench_groups import Group, groups
from .plots import costs, speed_accuracy
from .plots.speed_accuracy import Bubble


@rc_context(figures.PRINT)
def pictures(
    records: Sequence[BenchRecord],
    folder: Path,
    studies: Mapping[str, list[Row]],
    width: float = figures.TEXT,
) -> list[Path]:
    """Draw the figures of benchmarks as PNG files, each with an SVG and a PDF next to it.

    These are time and memory of each group over n, or as bars for a single n; growth; and speed against accuracy of
    each study whose mechanisms a benchmark timed.

    Args:
        records: records of benchmarks.
        folder: folder of the files.
        studies: rows of each study, for the test scores.
        width: width in inches; below the width of two columns of a paper, the two panels stand one below the other.

    Returns:
        The paths of the PNG files.
    """
    # All figures by their titles, from which the file names are made.
    drawings: dict[str, Figure] = {}
    for group in groups(records):
        if any(group.over_n().values()):
            drawings |= _group_figures(group, width)
    # Test scores of a study over the times of a benchmark.
    for study, rows in studies.items():
        panels = _panels(records, rows)
        if panels:
            palette = Palette(sorted({bubble.label for bubbles in panels.values() for bubble in bubbles}))
            figure = figures.charts(panels, speed_accuracy.draw, palette, width, markers=True)
            drawings[f"speed and accuracy/{study}"] = figure

    folder.mkdir(parents=True, exist_ok=True)
    names = unique_names(drawings)
    return [figures.write(figure, folder / names[title]) for title, figure in drawings.items()]


def _group_figures(group: Group, width: float) -> dict[str, Figure]:
    """Draw the figures of one group, by their names."""
    # A single length is drawn as bars, three or more also as growth.
    has_lengths = len(group.lengths) > 1
    name = f"{group.title} {group.source.fingerprint[:6]}"
    cost_figure = costs.draw_over_length(group, width) if has_lengths else costs.draw_bars(group, width)
    drawings = {name: cost_figure}
    if len(group.lengths) > 2:
        drawings[f"{name} growth"] = costs.draw_growth(group, width)

    length = "" if has_lengths else f", n {group.lengths[0]:,}"
    for figure in drawings.values():
        figure.suptitle(f"{group.title}{length}\n{group.source.machine.hardware}", fontsize="medium")
    return drawings


def _panels(records: Sequence[BenchRecord], rows: Sequence[Row]) -> dict[str, list[Bubble]]:
    """Combine the test scores of a study with the times and memory of benchmarks, by task and benchmark."""
    panels = {}
    for task in dict.fromkeys(row.task for row in rows):
        scored = {row.label: row for row in rows if row.task == task and row.test is not None}
        best = _best_benchmark(records, task, scored)
        if best is None:
            continue
        group, bench_rows = best
        first = bench_rows[0]
        padding = f", {first.pad} padding" if first.pad else ""
        title = f"{task}; times of {group.source.name}, {first.dtype}, n {first.n:,}{padding}"
        bubbles = []
        for row in bench_rows:
            result = scored[row.mechanism]
            bubbles.append(Bubble(result.label, row.ms, result.test, result.cell.std, result.n, row.peak_bytes))
        panels[title] = bubbles
    return panels


def _best_benchmark(
    records: Sequence[BenchRecord],
    task: str,
    scored: Mapping[str, Row],
) -> tuple[Group, list[BenchRow]] | None:
    """Find the benchmark of training steps that timed most mechanisms, preferably on the same task.

    Returns:
        The group and its rows of one n and padding; None if no benchmark timed two of the mechanisms.
    """
    best = None
    best_quality = (False, 1)
    for group in groups(records):
        first = group.rows[0]
        if (first.what, first.mode) != ("step", "training"):
            continue
        for n, pad in dict.fromkeys((row.n, row.pad) for row in group.rows):
            same_shape = [row for row in group.rows if (row.n, row.pad) == (n, pad)]
            bench_rows = [row for row in same_shape if row.ms and row.mechanism in scored]
            # The same task counts more than the number of mechanisms.
            quality = (first.task == task, len(bench_rows))
            if len(bench_rows) > 1 and quality > best_quality:
                best = (group, bench_rows)
                best_quality = quality
    return best
