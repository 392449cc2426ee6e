"""The same pictures as files: one PNG and one PDF for each study and kind, by matplotlib."""

import math
from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from ..runs import record
from .curves import Bubble, Curve
from .palette import COLOURS, Palette


def write(folder: Path, name: str, panels: dict[str, list], draw: Callable, palette: Palette) -> None:
    """Panels of one kind side by side, three in a line, under one legend."""
    across = min(3, len(panels))
    down = math.ceil(len(panels) / across)
    below = 0.75 + 0.18 * math.ceil(len({item.label for content in panels.values() for item in content}) / 4)
    width, height = 4.2 * across, 3.0 * down + below
    figure = Figure(figsize=(width, height))
    grid = figure.subplots(down, across, squeeze=False)
    # Fixed margins in inches: measuring every text to lay it out takes longer than drawing it.
    figure.subplots_adjust(
        0.6 / width, below / height, 1 - 0.15 / width, 1 - 0.35 / height, wspace=0.2, hspace=0.85 / (3.0 - 0.85)
    )
    handles: dict[str, object] = {}
    for axes, (title, content) in zip(grid.flat, panels.items(), strict=False):
        axes.set_title(title, fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=8)
        handles |= draw(axes, content, palette)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    figure.legend(handles.values(), handles, loc="lower center", ncols=4, frameon=False, fontsize=8)
    for kind, metadata in (("png", {}), ("pdf", {"CreationDate": None})):  # the same runs give the same file
        with record.replacing(folder / f"{name}.{kind}") as part:
            figure.savefig(part, format=kind, dpi=160, metadata=metadata)


def learning(axes: Axes, curves: list[Curve], palette: Palette) -> dict[str, object]:
    axes.set_xlabel("step", fontsize=8)
    axes.set_ylabel("dev score", fontsize=8)
    handles = {}
    for curve in curves:
        colour = COLOURS[palette.colour(curve.label)][0]
        (handles[curve.label],) = axes.plot(
            curve.steps, curve.mean, color=colour, linewidth=1.4, ls=_dash(curve, palette)
        )
        axes.fill_between(curve.steps, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
    return handles


def trade(axes: Axes, group: list[Bubble], palette: Palette) -> dict[str, object]:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(0.15)
    axes.set_xlabel("ms a step", fontsize=8)
    axes.set_ylabel("test score", fontsize=8)
    most = max((b.peak or 0) for b in group)
    handles = {}
    for b in sorted(group, key=lambda b: -(b.peak or 0)):
        size = 30 + 400 * (b.peak or 0) / most if most else 60
        colour = COLOURS[palette.colour(b.label)][0]
        shape = "os^D"[palette.turn(b.label) % 4]
        axes.scatter(b.ms, b.test, size, color=colour, alpha=0.75, edgecolors="white", marker=shape)
        handles[b.label] = Line2D([], [], color=colour, marker=shape, linestyle="")
    return handles


def _dash(curve: Curve, palette: Palette) -> object:
    dash = palette.dash(curve.label)
    return (0, tuple(float(x) for x in dash.split())) if dash else "-"
