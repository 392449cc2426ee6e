"""The picture of a task: scores and derivatives over the reach; and a study's matrices."""

from pathlib import Path

import numpy as np
import pandas as pd

from ...disk import atomic
from ...report.palette import COLOURS, Palette
from ...report.table import show
from ..figures import panels, save
from . import record
from .record import Probes
from .report import matrix_table

# Percent of MEGA's accuracy that networks of convolutions of width 61 have (docs/formulas.md, short convolutions).
PUBLISHED = {"listops": 83.51, "text": 94.45, "retrieval": 97.58, "image": 92.46, "pathfinder": 75.28}
WIDTH = 61


def draw(home: Path) -> list[Path]:
    """Draw every probe of a study and task, a line for each label, means over its seeds.

    Returns:
        The picture.
    """
    found: dict[str, list[Probes]] = {}
    for path in sorted(home.glob(f"*/seed-*/{record.NAME}")):
        made = record.load(path)
        found.setdefault(made.label, []).append(made)
    palette = Palette(found)
    figure, (left, right) = panels(2, width=5, height=4)
    for label, some in found.items():
        style = {"color": COLOURS[palette.colour(label)][0], "marker": "o", "markersize": 3, "linewidth": 1.2}
        style["linestyle"] = ("-", "--", ":", "-.")[palette.turn(label) % 4]
        same = [made for made in some if made.reaches == some[0].reaches]
        for axes, values in ((left, [made.scores for made in same]), (right, [made.beyond for made in same])):
            if None not in values:
                axes.plot(same[0].reaches, np.mean(values, 0), label=f"{label} (n = {len(same)})", **style)
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


def matrix(home: Path, name: str = record.SWAPS) -> list[Path]:
    """Write the scores of each task and label, a row, in each column, means over seeds.

    Args:
        home: folder of the probes of a study.
        name: name of the file of the matrix, and of the lines in the folders of its seeds.

    Returns:
        The table as Markdown and as CSV.
    """
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
