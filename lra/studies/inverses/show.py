"""The two pictures of a study of inverses, errors over steps and spectral norms."""

import itertools
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from ...report.palette import COLOURS, Palette
from .. import figures
from .measure import InvertedLayer

LINES = ("-", "--", ":", "-.")
SIZE = {"width": 4.3, "height": 3.9, "sharey": True}  # of panels
BELOW = {"loc": "outside lower center", "ncols": 4, "frameon": False}  # place of the legend
FLOOR, CEILING = 1e-8, 1e4  # of errors that are drawn
PANEL = ["place", "mechanism"]


def convergence(errors: pd.DataFrame, layers: list[InvertedLayer], title: str, path: Path) -> Path:
    """Draw ||A X A - A|| / ||A|| over steps, a panel for each place and mechanism, a dash for each m."""
    shown = errors[errors.measure == "AXA"]
    panels = shown.groupby(PANEL, sort=False)
    figure, grid = figures.panels(panels.ngroups, **SIZE)
    palette = Palette(shown.iteration)
    for axes, (panel, some) in zip(grid, panels, strict=True):
        own = [layer for layer in layers if (layer.place, layer.label) == panel]
        dashes = dict(zip(sorted(set(some["at"]), reverse=True), itertools.cycle(LINES), strict=False))
        for (at, iteration), line in some.groupby(["at", "iteration"], sort=False):
            _line(axes, line.steps, line, palette.colour(iteration), dashes[at], iteration)
        if len(dashes) > 1:
            for at, dash in dashes.items():
                axes.plot([], [], color="grey", linestyle=dash, label=f"m = {at}")
        if steps := own[0].steps:
            axes.axvline(steps, color="grey", linewidth=0.8, alpha=0.7)
            place = {"xy": (steps, 1), "xycoords": ("data", "axes fraction"), "va": "top", "fontsize": 7}
            axes.annotate(f" {steps} steps in use", **place)
        axes.set(yscale="log", ylim=(FLOOR, min(CEILING, 3 * shown.high.max())), xlabel="steps of the iteration")
        axes.set_ylabel("||A X A - A|| / ||A||")
        sizes = sorted({len(a) for layer in own for a in layer.inner})
        m = " to ".join(dict.fromkeys((str(sizes[0]), str(sizes[-1]))))
        axes.set_title(f"{', '.join(panel)}: m = {m}, n = {some.n.iloc[0]}", fontsize=9)
    weights = shown.weights.iloc[0]
    at = "" if weights == "random" else f" at the {weights} weights"
    about = f"{title}\nError of iterative inverses X of A{at}: median and range over n matrices"
    return figures.save(figure, path, about, **BELOW)


def spectral(norms: pd.DataFrame, title: str, path: Path) -> Path:
    """Draw the spectral norms, a panel for each place and mechanism, over m of random tokens or training steps."""
    panels = norms.groupby(PANEL, sort=False)
    figure, grid = figures.panels(panels.ngroups, **SIZE)
    palette = Palette(norms.matrix)
    for axes, (panel, some) in zip(grid, panels, strict=True):
        for matrix, line in some.groupby("matrix", sort=False):
            line = line.sort_values("at", kind="stable")
            _line(axes, line["at"], line, palette.colour(matrix), "-", matrix, "o")
        random = some.weights.iloc[0] == "random"
        axes.set(yscale="log", ylabel="spectral norm", xlabel="m, rows of the inverted matrix" if random else "")
        ticks = {
            at: str(at) if random else f"{kind}\nstep {at:,}" for at, kind in zip(some["at"], some.weights, strict=True)
        }
        if random:
            axes.set_xscale("log", base=2)
        axes.set_xticks(list(ticks), list(ticks.values()), fontsize=8)
        axes.minorticks_off()
        axes.set_title(f"{', '.join(panel)}: n = {some.n.iloc[0]}", fontsize=9)
    return figures.save(figure, path, f"{title}\nSpectral norms: median and range over n matrices", **BELOW)


def _line(axes: Axes, x: pd.Series, rows: pd.DataFrame, colour: int, style: str, label: str, marker: str = "") -> None:
    look = {"color": COLOURS[colour][0], "linestyle": style, "marker": marker, "markersize": 4}
    axes.plot(x.to_numpy(), rows["median"].to_numpy(), label=label, **look)
    low, high = (rows[end].clip(upper=1e30).to_numpy() for end in ("low", "high"))
    axes.fill_between(x.to_numpy(), low, high, color=COLOURS[colour][0], alpha=0.12, linewidth=0)
