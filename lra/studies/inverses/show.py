"""The two pictures of a study of inverses, errors over steps and spectral norms, and their tables."""

import csv
import io
import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from matplotlib.axes import Axes

from ...disk import atomic
from ...report.palette import COLOURS, Palette
from .. import figures
from .measure import Error, Norm

T = TypeVar("T")
LINES = ("-", "--", ":", "-.")
SIZE = {"width": 4.3, "height": 3.9, "sharey": True}  # of panels
BELOW = {"loc": "outside lower center", "ncols": 4, "frameon": False}  # place of the legend
FLOOR, CEILING = 1e-8, 1e4  # of errors that are drawn


def save(home: Path, title: str, errors: list[Error], norms: list[Norm]) -> list[Path]:
    """Write pictures and tables into a folder, and return their paths.

    Args:
        home: the folder.
        title: title of the pictures.
        errors, norms: rows of the tables.
    """
    files = {
        "convergence.csv": as_csv(("iteration", "steps", "measure"), errors),
        "norms.csv": as_csv(("matrix",), norms),
    }
    pictures = [convergence(errors, title, home), spectral(norms, title, home)]
    for name, text in files.items():
        atomic.write(home / name, text)
    return [*pictures, *(home / name for name in files)]


def as_csv(columns: Sequence[str], rows: Iterable[Error | Norm]) -> str:
    """Write rows as CSV: what the matrices are of, these columns, then median, low, high and n."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("place", "mechanism", "weights", "at", *columns, "median", "low", "high", "n"))
    for row in rows:
        about = (row.layer.place, row.layer.label, row.layer.weights, row.layer.at)
        values = (f"{value:.6g}" for value in (row.median, row.low, row.high))
        table.writerow((*about, *(getattr(row, column) for column in columns), *values, row.n))
    return text.getvalue()


def convergence(errors: list[Error], title: str, home: Path) -> Path:
    """Draw ||A X A - A|| / ||A|| over steps, a panel for each place and mechanism, a dash for each m."""
    shown = [e for e in errors if e.measure == "AXA"]
    highest, weights = max(e.high for e in shown), shown[0].layer.weights
    panels = _grouped(shown, _panel)
    figure, grid = figures.panels(len(panels), **SIZE)
    palette = Palette(e.iteration for e in shown)
    for axes, (name, some) in zip(grid, panels.items(), strict=True):
        dashes = dict(zip(sorted({e.layer.at for e in some}, reverse=True), itertools.cycle(LINES), strict=False))
        for (at, iteration), line in _grouped(some, lambda e: (e.layer.at, e.iteration)).items():
            _line(axes, [e.steps for e in line], line, COLOURS[palette.colour(iteration)][0], dashes[at], iteration)
        if len(dashes) > 1:
            for at, dash in dashes.items():
                axes.plot([], [], color="grey", linestyle=dash, label=f"m = {at}")
        if own := some[0].layer.steps:
            axes.axvline(own, color="grey", linewidth=0.8, alpha=0.7)
            axes.annotate(f" {own} steps in use", (own, 1), xycoords=("data", "axes fraction"), va="top", fontsize=7)
        axes.set(yscale="log", ylim=(FLOOR, min(CEILING, 3 * highest)), xlabel="steps of the iteration")
        axes.set_ylabel("||A X A - A|| / ||A||")
        axes.set_title(f"{name}: {_sizes(some)}", fontsize=9)
    at = "" if weights == "random" else f" at the {weights} weights"
    about = f"{title}\nError of iterative inverses X of A{at}: median and range over n matrices"
    return figures.save(figure, home / "convergence.png", about, **BELOW)


def spectral(norms: list[Norm], title: str, home: Path) -> Path:
    """Draw the spectral norms, a panel for each place and mechanism, over m of random tokens or training steps."""
    panels = _grouped(norms, _panel)
    figure, grid = figures.panels(len(panels), **SIZE)
    palette = Palette(row.matrix for row in norms)
    for axes, (name, some) in zip(grid, panels.items(), strict=True):
        for matrix, line in _grouped(some, lambda row: row.matrix).items():
            line.sort(key=lambda row: row.layer.at)
            _line(axes, [row.layer.at for row in line], line, COLOURS[palette.colour(matrix)][0], "-", matrix, "o")
        random = some[0].layer.weights == "random"
        axes.set(yscale="log", ylabel="spectral norm", xlabel="m, rows of the inverted matrix" if random else "")
        ticks = {row.layer.at: str(row.layer.at) if random else _when(row) for row in some}
        if random:
            axes.set_xscale("log", base=2)
        axes.set_xticks(list(ticks), list(ticks.values()), fontsize=8)
        axes.minorticks_off()
        axes.set_title(f"{name}: n = {some[0].n}", fontsize=9)
    about = f"{title}\nSpectral norms: median and range over n matrices"
    return figures.save(figure, home / "norms.png", about, **BELOW)


def _panel(row: Error | Norm) -> str:
    return f"{row.layer.place}, {row.layer.label}"


def _when(row: Norm) -> str:
    return f"{row.layer.weights}\nstep {row.layer.at:,}"


def _sizes(some: list[Error]) -> str:
    sizes = sorted({len(a) for e in some for a in e.layer.inner})
    spread = f"m = {sizes[0]}" if len(sizes) == 1 else f"m = {sizes[0]} to {sizes[-1]}"
    return f"{spread}, n = {some[0].n}"


def _grouped(rows: Iterable[T], key: Callable[[T], object]) -> dict:
    groups: dict[object, list[T]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _line(axes: Axes, x: list[int], rows: list, colour: str, style: str, label: str, marker: str = "") -> None:
    axes.plot(x, [row.median for row in rows], color=colour, linestyle=style, marker=marker, markersize=4, label=label)
    low, high = ([min(getattr(row, end), 1e30) for row in rows] for end in ("low", "high"))
    axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
