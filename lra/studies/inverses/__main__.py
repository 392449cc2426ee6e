"""python -m lra.studies.inverses: iterative inverses over their steps, and spectral norms of what they are part of."""

if __name__ == "__main__":
    from lra.startup import begin

    begin()  # before torch is imported

import itertools
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import torch
from matplotlib.axes import Axes

from ...config.entry import main
from ...console import log
from ...disk import atomic
from ...report.palette import COLOURS, Palette
from ...runs.reader import finished
from .. import figures
from .matrices import InversesOptions, of_run, random_tokens
from .measure import InvertedLayer, errors, norms

LINES = ("-", "--", ":", "-.")
SIZE = {"width": 4.3, "height": 3.9, "sharey": True}  # of panels
BELOW = {"loc": "outside lower center", "ncols": 4, "frameon": False}  # place of the legend
FLOOR, CEILING = 1e-8, 1e4  # of errors that are drawn
PANEL = ["place", "mechanism"]


@main(InversesOptions)
def inverses(options: InversesOptions) -> None:
    """Measure random tokens, or every finished seed of the runs.

    Raises:
        ValueError: a folder is no run, or its mechanism inverts no matrix.
    """
    if options.threads:
        torch.set_num_threads(options.threads)
    home = options.runs / "inverses"
    if options.run is None:
        sizes = f"{options.length} tokens, {options.heads} heads of {options.head_dim}"
        measured(random_tokens(options), home / "random", f"Random tokens, {sizes}", options)
        return
    for run in [run for folder in options.run for run in finished(folder, options.trust)]:
        r = run.record
        title = f"{r.task}, {r.label}, seed {r.seed}, test {r.test:.1f}, budget {r.budget}"
        measured(of_run(run, options), home / r.study / r.task / r.label / f"seed-{r.seed}", title, options)


def measured(found: Iterable[InvertedLayer], home: Path, title: str, options: InversesOptions) -> None:
    """Measure layers and save tables and pictures. Errors over steps are of random tokens or of the best weights."""
    layers = list(found)
    trained = dict.fromkeys(f"{layer.weights} at step {layer.at}" for layer in layers if layer.weights != "random")
    if trained:
        log(f"{title}: weights: {', '.join(trained)}")
    some = [layer for layer in layers if layer.weights in ("random", "best")]
    over_steps, spectra = errors(some, sorted(set(options.steps)), getattr(torch, options.dtype)), norms(layers)
    written = [
        convergence(over_steps, some, title, home / "convergence.png"),
        spectral(spectra, title, home / "norms.png"),
    ]
    for name, table in {"convergence.csv": over_steps, "norms.csv": spectra}.items():
        atomic.write(home / name, table.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
        written.append(home / name)
    print(f"written: {', '.join(map(str, written))}")


def convergence(errors: pd.DataFrame, layers: list[InvertedLayer], title: str, path: Path) -> Path:
    """Draw ||A X A - A|| / ||A|| over steps, a panel for each place and mechanism, a dash for each m."""
    shown = errors[errors.measure == "AXA"]
    panels = shown.groupby(PANEL, sort=False)
    figure, grid = figures.panels(panels.ngroups, **SIZE)
    palette = Palette(shown.iteration)
    for axes, (panel, some) in zip(grid, panels, strict=True):
        own = [layer for layer in layers if (layer.place, layer.mechanism) == panel]
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
    colour = COLOURS[colour][0]
    axes.plot(x, rows["median"], color=colour, linestyle=style, marker=marker, markersize=4, label=label)
    axes.fill_between(x, rows.low.clip(upper=1e30), rows.high.clip(upper=1e30), color=colour, alpha=0.12, linewidth=0)


if __name__ == "__main__":
    inverses()
