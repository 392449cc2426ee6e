"""The picture of errors over lengths and its table."""

import csv
import io
from pathlib import Path
from statistics import mean

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ...disk import atomic
from ...report.palette import COLOURS, Palette
from ..figures import panels, save
from .points import TASKS, Point, Printed, printed

SAME = {"softmax": "sdpa"}  # exact attention, however it is computed
MARKERS, APART = "osv^Dph*", 0.05  # of neighbours, and their distance in powers of two, so that none hides another


def show(points: list[Point], home: Path) -> list[Path]:
    """Print the mean errors, and write the picture and the table.

    Args:
        points: points of one study.
        home: its folder.

    Returns:
        The files.
    """
    ended = [point for point in points if point.errors]
    if ended:
        rows = {(p.task, p.label, p.length): mean(p.errors.values()) for p in ended}
        table = pd.Series(rows, name="error").unstack().rename_axis(["task", "error in %"])
        print(table.to_string(float_format="{:.2f}".format, na_rep=""))
    files = [home / "lengths.png", home / "lengths.csv"]
    atomic.write(files[1], as_csv(points, printed()))
    figure = draw(points, printed())
    columns = 1 + 2 * len(figure.axes)
    save(figure, files[0], caption(points), loc="outside lower center", ncols=columns, frameon=False)
    return files


def as_csv(points: list[Point], known: list[Printed]) -> str:
    """Write every seed of every point and every published number as a row; ``error`` is in percent."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("task", "length", "mechanism", "source", "seed", "error"))
    for p in points:
        table.writerows((p.task, p.length, p.label, "measured", seed, f"{e:.4f}") for seed, e in p.errors.items())
    for number in known:
        table.writerows((number.task, n, number.model, "published", "", number.error) for n in number.lengths)
    return text.getvalue()


def draw(points: list[Point], known: list[Printed]) -> Figure:
    """Draw a panel for each task: a line for each mechanism with the range over its seeds, published numbers hollow."""
    tasks = [task for task in TASKS if any(p.task == task for p in points)]
    figure, grid = panels(len(tasks), width=5.5, height=5.2)
    labels = sorted({p.label for p in points})
    palette = Palette([*labels, *(_own(number.attn, labels) for number in known)])
    for task, axes in zip(tasks, grid, strict=True):
        _panel(axes, [p for p in points if p.task == task], [n for n in known if n.task == task], labels, palette)
        axes.set_title(task.replace("_", " "))
    return figure


def caption(points: list[Point]) -> str:
    """Describe what the picture shows: seeds, budget, published numbers, and seeds that diverged."""
    seeds = sorted({len(p.errors) for p in points if p.errors}) or [0]
    n = str(seeds[-1]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    budgets = ", ".join(sorted({p.budget for p in points}))
    lost = sum(p.diverged for p in points)
    lines = [
        f"Test error over length: mean and range over seeds, n = {n} a point, budget {budgets}"
        + (f"; {lost} run{'s' * (lost > 1)} diverged, without an error" if lost else ""),
        "hollow: PSF-Attn, text of section 5.2, whose models and training are others",
    ]
    return "\n".join(lines)


def _own(attn: str, labels: list[str]) -> str:
    """The label whose colour a published number has."""
    other = SAME.get(attn, attn)
    return other if other in labels else attn


def _look(palette: Palette, label: str) -> tuple[str, str]:
    """Colour and marker of a label."""
    return COLOURS[palette.colour(label)][0], MARKERS[palette.place[label] % len(MARKERS)]


def _panel(axes: Axes, points: list[Point], known: list[Printed], labels: list[str], palette: Palette) -> None:
    constant = {p.length: p.constant for p in points}
    style = {"color": "grey", "linestyle": ":", "linewidth": 1.2}
    axes.plot(sorted(constant), [constant[n] for n in sorted(constant)], label="best constant answer", **style)
    for i, label in enumerate(labels):
        line = [p for p in points if p.label == label and p.errors]
        colour, marker = _look(palette, label)
        x = [p.length * 2 ** (APART * (i - (len(labels) - 1) / 2)) for p in line]
        low, middle, high = ([of(p.errors.values()) for p in line] for of in (min, mean, max))
        axes.plot(x, middle, color=colour, marker=marker, markersize=5, linewidth=1.5, label=label)
        axes.vlines(x, low, high, color=colour, linewidth=2.5, alpha=0.5)
    for number in known:
        colour, marker = _look(palette, _own(number.attn, labels))
        hollow = {"marker": marker, "markersize": 9, "markerfacecolor": "none", "linestyle": "none", "color": colour}
        axes.plot(number.lengths, [number.error] * len(number.lengths), label=f"{number.model}, published", **hollow)
    axes.set_xscale("log", base=2)
    every = sorted({p.length for p in points} | {n for number in known for n in number.lengths})
    axes.xaxis.set_major_locator(FixedLocator(every))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:,.0f}"))
    axes.tick_params(axis="x", labelsize=8, rotation=30)
    axes.set_ylim(-3, 103)
    axes.set_xlabel("length, tokens")
    axes.set_ylabel("test error, %")
