"""python -m lra.studies.inverses: the convergence of iterative inverses, and spectral norms of their matrices."""

if __name__ == "__main__":
    from lra.config.manual import begin

    # Before torch is imported.
    begin("inverses")

import itertools
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import torch
from matplotlib.axes import Axes

from ...config.entry import main
from ...console import log
from ...io import atomic
from ...results.palette import COLOURS, Palette
from ...runs.reader import finished
from .. import figures
from . import measure
from .matrices import InversesOptions, random_layers, run_layers
from .measure import InvertedLayer

# Line styles of the sizes m, repeated from the fifth size on.
LINES = ("-", "--", ":", "-.")
# Options of the panels and of the legend.
SIZE = {"width": 4.3, "height": 3.9, "sharey": True}
LEGEND_BELOW = {"loc": "outside lower center", "ncols": 4, "frameon": False}
# Limits of the axis of errors.
LOWEST = 1e-8
HIGHEST = 1e4
# Columns whose values get a panel.
PANEL = ["place", "mechanism"]


@main(InversesOptions)
def inverses(options: InversesOptions) -> None:
    """Measure the inverses of mechanisms on random tokens, or in every finished seed of the runs.

    Raises:
        ValueError: a path is not a run, its mechanism inverts no matrix, its weights or data cannot be used, or m is
            larger than the number of random tokens.
    """
    if options.threads:
        torch.set_num_threads(options.threads)
    home = options.runs / "inverses"
    if options.run is None:
        title = f"Random tokens, {options.length} tokens, {options.heads} heads of {options.head_dim}"
        measure_and_save(random_layers(options), home / "random", title, options)
        return

    # All runs are found before the first is measured.
    runs = []
    for path in options.run:
        runs.extend(finished(path, options.trust))
    for run in runs:
        r = run.result
        title = f"{r.task}, {r.label}, seed {r.seed}, test {r.test:.1f}, budget {r.budget}"
        measure_and_save(run_layers(run, options), home / r.study / r.task / r.label / f"seed-{r.seed}", title, options)


def measure_and_save(layers: Iterable[InvertedLayer], home: Path, title: str, options: InversesOptions) -> None:
    """Measure layers, and write two tables and two figures.

    Args:
        layers: layers of a run, or of random tokens. Errors over steps are measured with the best weights only, norms
            with all of them.
        home: folder of the files.
        title: title of the figures.
        options: options of the study.
    """
    layers = list(layers)
    trained = [f"{layer.weights} at step {layer.at}" for layer in layers if layer.weights != "random"]
    if trained:
        log(f"{title}: weights: {', '.join(dict.fromkeys(trained))}")

    iterated = [layer for layer in layers if layer.weights in ("random", "best")]
    steps = sorted(set(options.steps))
    over_steps = measure.errors(iterated, steps, getattr(torch, options.dtype))
    spectra = measure.norms(layers)
    files = [
        draw_convergence(over_steps, iterated, title, home / "convergence.png"),
        draw_norms(spectra, title, home / "norms.png"),
    ]
    for name, table in {"convergence.csv": over_steps, "norms.csv": spectra}.items():
        text = table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
        atomic.write(home / name, text)
        files.append(home / name)
    print(f"written: {', '.join(map(str, files))}")


def draw_convergence(errors: pd.DataFrame, layers: list[InvertedLayer], title: str, path: Path) -> Path:
    """Draw ||A X A - A|| / ||A|| over steps: a panel for each layer or kind of tokens, and mechanism.

    A colour stands for an iteration, a line style for m.
    """
    errors = errors[errors.measure == "AXA"]
    panels = errors.groupby(PANEL, sort=False)
    figure, grid = figures.panels(panels.ngroups, **SIZE)
    palette = Palette(errors.iteration)
    highest = min(HIGHEST, 3 * errors.high.max())
    for axes, (panel, rows) in zip(grid, panels, strict=True):
        _convergence_panel(axes, rows, palette)
        axes.set(yscale="log", ylim=(LOWEST, highest), xlabel="steps of the iteration")
        axes.set_ylabel("||A X A - A|| / ||A||")

        # The number of steps that the mechanism uses is a vertical line.
        panel_layers = [layer for layer in layers if (layer.place, layer.mechanism) == panel]
        steps = panel_layers[0].steps
        if steps:
            axes.axvline(steps, color="grey", linewidth=0.8, alpha=0.7)
            axes.annotate(
                f" {steps} steps in use",
                xy=(steps, 1),
                xycoords=("data", "axes fraction"),
                va="top",
                fontsize=7,
            )
        axes.set_title(f"{', '.join(panel)}: m = {_size_range(panel_layers)}, n = {rows.n.iloc[0]}", fontsize=9)

    # All panels have the same kind of weights.
    weights = errors.weights.iloc[0]
    at = "" if weights == "random" else f" at the {weights} weights"
    about = f"{title}\nError of iterative inverses X of A{at}: median and range over n matrices"
    return figures.save(figure, path, about, **LEGEND_BELOW)


def _convergence_panel(axes: Axes, rows: pd.DataFrame, palette: Palette) -> None:
    """Draw a line for each iteration and, for random tokens, each m; the legend lists the styles of several sizes."""
    # For random tokens ``at`` is m. For a run it is the step of the best weights, so there is one line style.
    sizes = sorted(set(rows["at"]), reverse=True)
    dashes = dict(zip(sizes, itertools.cycle(LINES), strict=False))
    for (size, iteration), line in rows.groupby(["at", "iteration"], sort=False):
        _line(axes, line.steps, line, palette.colour_index(iteration), dashes[size], iteration)
    if len(dashes) > 1:
        for size, dash in dashes.items():
            # An empty line makes an entry of the legend.
            axes.plot([], [], color="grey", linestyle=dash, label=f"m = {size}")


def _size_range(layers: list[InvertedLayer]) -> str:
    """Format the smallest and the largest size m of the matrices."""
    sizes: set[int] = set()
    for layer in layers:
        sizes.update(len(a) for a in layer.inverted)
    smallest = min(sizes)
    largest = max(sizes)
    return str(smallest) if smallest == largest else f"{smallest} to {largest}"


def draw_norms(norms: pd.DataFrame, title: str, path: Path) -> Path:
    """Draw the spectral norms over m of random tokens or over training steps, in panels as ``draw_convergence``."""
    panels = norms.groupby(PANEL, sort=False)
    figure, grid = figures.panels(panels.ngroups, **SIZE)
    palette = Palette(norms.matrix)
    for axes, (panel, rows) in zip(grid, panels, strict=True):
        for matrix, line in rows.groupby("matrix", sort=False):
            line = line.sort_values("at", kind="stable")
            _line(axes, line["at"], line, palette.colour_index(matrix), "-", matrix, "o")
        axes.set(yscale="log", ylabel="spectral norm")

        # The horizontal axis is m for random tokens, and the training step for a run.
        ticks: dict[int, str] = {}
        if rows.weights.iloc[0] == "random":
            axes.set(xlabel="m, rows of the inverted matrix")
            axes.set_xscale("log", base=2)
            for m in rows["at"]:
                ticks[m] = str(m)
        else:
            for step, weights in zip(rows["at"], rows.weights, strict=True):
                ticks[step] = f"{weights}\nstep {step:,}"
        axes.set_xticks(list(ticks), list(ticks.values()), fontsize=8)
        axes.minorticks_off()
        axes.set_title(f"{', '.join(panel)}: n = {rows.n.iloc[0]}", fontsize=9)
    about = f"{title}\nSpectral norms: median and range over n matrices"
    return figures.save(figure, path, about, **LEGEND_BELOW)


def _line(axes: Axes, x: pd.Series, rows: pd.DataFrame, colour: int, style: str, label: str, marker: str = "") -> None:
    """Draw medians as a line and ranges as an area."""
    shade = COLOURS[colour][0]
    axes.plot(x, rows["median"], color=shade, linestyle=style, marker=marker, markersize=4, label=label)
    # Infinite values cannot be drawn.
    low = rows.low.clip(upper=1e30)
    high = rows.high.clip(upper=1e30)
    axes.fill_between(x, low, high, color=shade, alpha=0.12, linewidth=0)


if __name__ == "__main__":
    inverses()
