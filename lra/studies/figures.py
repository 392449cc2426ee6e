"""Figures of studies: panels of one size, grids, one legend for all panels, and PNG files."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..report.figures import grid, write

ACROSS = 3  # panels in a line, at most


def panels(count: int, *, width: float, height: float, **options) -> tuple[Figure, list[Axes]]:
    """Make a figure of panels, line by line, each ``width`` x ``height`` inches; options are those of ``subplots``."""
    figure, charts = grid([""] * count, width * min(count, ACROSS), width, height, **options)
    for axes in charts:
        axes.grid(alpha=0.3)
    return figure, charts


def save(figure: Figure, path: Path, title: str = "", **legend) -> Path:
    """Write a figure as PNG, with a title above the panels and, if it has options, one legend of all their lines."""
    if title:
        figure.suptitle(title, fontsize=10)
    if legend:
        parts = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in figure.axes]
        handles = {name: line for part in parts for line, name in part}
        figure.legend(handles.values(), handles.keys(), fontsize=8, **legend)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write(figure, path.with_suffix(""), ("png",))
