"""The figures of the chapter on efficiency: time and memory over n, growth, speed against accuracy."""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from ..names import unique_names
from ..results import figures
from ..results.bench_record import BenchRecord, BenchRow
from ..results.palette import Palette
from ..results.summary import Row, Studies
from .bench_groups import Group, groups
from .plots import costs, speed_accuracy
from .plots.speed_accuracy import Bubble


@rc_context(figures.PRINT)
def save_pictures(
    records: Sequence[BenchRecord],
    folder: Path,
    studies: Studies,
    width: float = figures.TEXT_WIDTH,
) -> list[Path]:
    """Draw the figures of benchmarks as PNG files, each with an SVG and a PDF next to it.

    These are time and memory of each group over n, or as bars for a single n; growth; and speed against accuracy of
    each study whose mechanisms a benchmark timed.

    Args:
        records: records of benchmarks.
        folder: folder of the files.
        studies: rows of each study, for the test scores.
        width: width in inches; below one and a half columns of a paper, the two panels stand one below the other.

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
            bubbles = itertools.chain.from_iterable(panels.values())
            labels = {bubble.label for bubble in bubbles}
            palette = Palette(sorted(labels))
            figure = figures.charts(panels, speed_accuracy.draw, palette, width, markers=True)
            drawings[f"speed and accuracy/{study}"] = figure

    folder.mkdir(parents=True, exist_ok=True)
    names = unique_names(drawings)
    paths = []
    for title, figure in drawings.items():
        path = folder / names[title]
        paths.append(figures.write(figure, path))
    return paths


def _group_figures(group: Group, width: float) -> dict[str, Figure]:
    """Draw the figures of one group, by their names."""
    # A single length is drawn as bars, three or more also as growth.
    lengths = group.lengths
    title = group.title
    name = f"{title} {group.source.fingerprint[:6]}"
    drawings = {}
    if len(lengths) == 1:
        title += f", n {lengths[0]:,}"
        drawings[name] = costs.draw_bars(group, width)
    else:
        drawings[name] = costs.draw_over_length(group, width)
    if costs.exponents_of(group):
        drawings[f"{name} growth"] = costs.draw_growth(group, width)

    hardware = group.source.machine.hardware
    for figure in drawings.values():
        figure.suptitle(f"{title}\n{hardware}", fontsize="medium", wrap=True)
    return drawings


def _panels(records: Sequence[BenchRecord], rows: Sequence[Row]) -> dict[str, list[Bubble]]:
    """Combine the test scores of a study with the times and memory of benchmarks, by task and benchmark."""
    panels: dict[str, list[Bubble]] = {}
    for task in dict.fromkeys(row.task for row in rows):
        scored = {row.label: row for row in rows if row.task == task and row.test is not None}
        best = _best_benchmark(records, task, scored)
        if best is None:
            continue
        group, bench_rows = best
        first = bench_rows[0]
        title = f"{task}; times of {group.source.name}, {first.dtype}, n {first.n:,}"
        if first.pad:
            title += f", {first.pad} padding"
        panels[title] = []
        for row in bench_rows:
            result = scored[row.mechanism]
            bubble = Bubble(
                label=result.label,
                ms=row.ms,
                test=result.test,
                std=result.cell.std,
                n=result.n,
                peak=row.peak_bytes,
            )
            panels[title].append(bubble)
    return panels


def _best_benchmark(
    records: Sequence[BenchRecord],
    task: str,
    scored: Mapping[str, Row],
) -> tuple[Group, list[BenchRow]] | None:
    """Find the benchmark of training steps that timed the most mechanisms; one on the same task takes precedence.

    Returns:
        The group and its rows of one n and padding; None if no benchmark timed two of the mechanisms.
    """
    best = None
    best_quality = (False, 1)
    for group in groups(records):
        first = group.rows[0]
        if first.what != "step" or first.mode != "training":
            continue
        # Mechanisms with a score, by length and padding.
        by_shape: dict[tuple[int, str | None], list[BenchRow]] = defaultdict(list)
        for row in group.rows:
            if row.ms and row.mechanism in scored:
                by_shape[row.n, row.pad].append(row)
        for bench_rows in by_shape.values():
            # The same task counts more than the number of mechanisms.
            num_mechanisms = len(bench_rows)
            quality = (first.task == task, num_mechanisms)
            if num_mechanisms > 1 and quality > best_quality:
                best = (group, bench_rows)
                best_quality = quality
    return best
