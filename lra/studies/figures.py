"""Figures of studies: panels of one size with grid lines, one legend for all panels, and PNG files."""

from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..results.figures import grid, write

# Maximum number of panels in a row of a figure.
MAX_COLUMNS = 3


def panels(count: int, *, width: float, height: float, **options) -> tuple[Figure, list[Axes]]:
    """Make a figure of panels without titles.

    Args:
        count: number of panels.
        width, height: size of a panel in inches.
        options: options of matplotlib's ``subplots``.

    Returns:
        The figure, and its panels from left to right and top to bottom.
    """
    titles = [""] * count
    total_width = width * min(count, MAX_COLUMNS)
    figure, charts = grid(titles, total_width, width, height, **options)
    for axes in charts:
        axes.grid(alpha=0.3)
    return figure, charts


def save(figure: Figure, path: Path, title: str = "", **legend) -> Path:
    """Write a figure as PNG.

    Args:
        figure: figure with its panels.
        path: path of the file.
        title: title above the panels; none if empty.
        legend: options of matplotlib's ``legend`` for one legend of all panels; without any there is no legend.

    Returns:
        The path.
    """
    if title:
        figure.suptitle(title, fontsize=10)
    if legend:
        # A label that several panels have gets one entry.
        handles: dict[str, Artist] = {}
        for axes in figure.axes:
            lines, names = axes.get_legend_handles_labels()
            handles.update(zip(names, lines, strict=True))
        figure.legend(handles.values(), handles.keys(), fontsize=8, **legend)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write(figure, path.with_suffix(""), ("png",))
