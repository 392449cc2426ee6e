"""The look of all figures: style, size, axes, legends, labels and saving. ``lra.report.plots`` draws most figures."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from adjustText import adjust_text
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogFormatter, MaxNLocator, StrMethodFormatter
from matplotlib.transforms import Bbox

from ..console import plural
from ..io.atomic import replacing
from ..names import unique_names
from .palette import GREY, INK, KINDS, RULE, SOFT, Palette, family, look

# Inches: a column of a paper in two columns, and both columns.
COLUMN_WIDTH = 3.25
TEXT_WIDTH = 6.75
# Inches: height of a chart.
CHART = 2.1
# Mean width of a letter in units of the font size, and letters of a legend entry in addition to its label.
LETTER = 0.6
LEGEND_LETTERS = 6
# Corners of the square around a bubble.
CORNERS = np.array([(-1, -1), (-1, 1), (1, -1), (1, 1)])
# Elements of one label have the id "series-<number>", by which the page's SVG groups them.
SERIES = "series-"
# Data is drawn above axes and grid.
ABOVE: dict[str, Any] = {"zorder": 3, "clip_on": False}
# Publishers ask for TrueType fonts.
FONTS = {"pdf.fonttype": 42, "ps.fonttype": 42}
STYLE: dict[str, Any] = {
    **{f"axes.spines.{side}": False for side in ("top", "right", "left")},
    "axes.edgecolor": SOFT,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": SOFT,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "grid.color": RULE,
    "legend.frameon": False,
    "xaxis.labellocation": "right",
    "xtick.bottom": False,
    "xtick.labelcolor": SOFT,
    "ytick.labelcolor": SOFT,
    "ytick.left": False,
}
PRINT = STYLE | {"font.size": 8, "lines.linewidth": 1.2}
# Metadata of each format without a date, so that the same figure gives the same bytes.
DATELESS: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None}}


def grid(
    titles: Collection[str], width: float, chart_width: float = COLUMN_WIDTH, height: float = CHART, **options
) -> tuple[Figure, list[Axes]]:
    """Make a figure of charts with titles, side by side if the width has room.

    Args:
        titles: titles of the charts.
        width: width of the figure in inches.
        chart_width, height: size of a chart in inches.
        options: options of matplotlib's ``subplots``.
    """
    num_charts = len(titles)
    room = round(width / chart_width)
    num_columns = max(1, min(num_charts, room))
    num_rows = math.ceil(num_charts / num_columns)
    figure = Figure(figsize=(width, height * num_rows), layout="constrained")
    charts = list(figure.subplots(num_rows, num_columns, squeeze=False, **options).flat)
    for axes, title in zip(charts, titles, strict=False):
        axes.set_title(title)
    # The last row may have fewer charts than columns.
    for axes in charts[num_charts:]:
        axes.remove()
    return figure, charts[:num_charts]


@rc_context(PRINT)
def charts(
    panels: Mapping[str, Sequence],
    draw: Callable,
    palette: Palette,
    width: float = TEXT_WIDTH,
    *,
    markers: bool = False,
) -> Figure:
    """Draw charts of one kind under one legend.

    Args:
        panels: contents of each chart by its title.
        draw: drawing function of ``plots``, with the arguments axes, contents and palette.
        palette: colours and shapes of the labels; the lines of other labels are grey.
        width: width of the figure in inches.
        markers: whether the legend shows markers instead of lines.
    """
    labels = {item.label for content in panels.values() for item in content}
    coloured = sorted(labels & palette.position.keys())
    if markers:
        looks = {label: palette.marker(label) | {"linestyle": "none"} for label in coloured}
    else:
        looks = {label: palette.line(label) for label in coloured}
    num_grey = len(labels) - len(coloured)
    if num_grey:
        marker_look = {"marker": "o", "linestyle": "none"} if markers else {}
        looks[plural(num_grey, "other")] = {"color": GREY, **marker_look}

    figure, charts = grid(panels, width)
    for axes, content in zip(charts, panels.values(), strict=True):
        # Grey lines are drawn first, behind the coloured ones.
        draw(axes, sorted(content, key=lambda item: item.label in palette.position), palette)
    letters = LEGEND_LETTERS + max(map(len, looks), default=0)
    points_per_entry = LETTER * PRINT["font.size"] * letters
    _add_legend(figure, looks, int(width * 72 / points_per_entry))
    place_labels(figure, leaders=True)
    return figure


def add_family_legend(figure: Figure, labels: Iterable[str]) -> None:
    """Add a legend of the families of labels below a figure, whose height grows."""
    kinds = sorted(set(map(family, labels)), key=KINDS.index)
    looks = {kind: look(kind) | {"linestyle": "none"} for kind in kinds}
    # A name of a family takes about 1.6 inches.
    num_columns = round(figure.get_figwidth() / 1.6)
    _add_legend(figure, looks, num_columns)


def _add_legend(figure: Figure, looks: Mapping[str, dict], num_columns: int) -> None:
    """Add a legend of one or more columns below a figure, whose height grows by the lines of the legend."""
    num_columns = max(1, num_columns)
    num_lines = math.ceil(len(looks) / num_columns)
    # A line of the legend is 0.18 inches high.
    height = figure.get_figheight() + 0.18 * num_lines
    figure.set_figheight(height)
    handles = [Line2D([], [], **options) for options in looks.values()]
    figure.legend(handles, looks.keys(), loc="outside lower center", ncols=num_columns)


def set_ticks_and_labels(axes: Axes, xlabel: str, ylabel: str = "") -> None:
    """Set at most six round ticks on both axes, and the labels of the horizontal and the vertical axis."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(format_tick))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)


def format_tick(value: float, _position: int = 0) -> str:
    """Format a tick: 5000 -> 5k."""
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def place_labels(figure: Figure, leaders: bool = False) -> None:
    """Move the labels of points apart, and remove overlapping ones unless leaders are drawn.

    Args:
        figure: figure with everything in it.
        leaders: whether lines lead from labels to their points.
    """
    labels = {}
    for axes in figure.axes:
        texts = [text for text in axes.texts if type(text) is Text]
        if texts:
            labels[axes] = texts
    if labels:
        lay_out(figure)

    arrows = {"arrowstyle": "-", "color": SOFT, "lw": 0.5} if leaders else None
    for axes, texts in labels.items():
        x, y = _obstacles(axes, texts)
        adjust_text(texts, x, y, ax=axes, expand=(1.2, 1.6), iter_lim=100, arrowprops=arrows)
        if not leaders:
            _remove_overlapping(texts)


def _obstacles(axes: Axes, texts: Sequence[Text]) -> np.ndarray:
    """Return the points that labels must not cover: label positions and the corners around bubbles, (2, points)."""
    points = [axes.transData.transform([text.get_position() for text in texts])]
    for bubble in axes.collections:
        if isinstance(bubble, PathCollection):
            # Sizes are areas in square points.
            radius = bubble.get_sizes()[0] ** 0.5 / 2 * axes.figure.dpi / 72
            centre = axes.transData.transform(bubble.get_offsets())
            points.append(centre + radius * CORNERS)
    return axes.transData.inverted().transform(np.concatenate(points)).T


def _remove_overlapping(texts: Sequence[Text]) -> None:
    """Remove each text that overlaps an earlier one that stays."""
    boxes: list[Bbox] = []
    for text in texts:
        box = text.get_window_extent()
        if box.count_overlaps(boxes):
            text.remove()
        else:
            boxes.append(box)


def lay_out(figure: Figure) -> None:
    """Compute the positions of all parts of a figure."""
    # Texts become literal first: an invalid formula has no size.
    make_literal(figure)
    figure.draw_without_rendering()


def make_literal(figure: Figure) -> None:
    """Show all texts of a figure verbatim, without formulas between dollar signs.

    The powers of ten of logarithmic axes are matplotlib's own formulas and stay.
    """
    powers = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if isinstance(axis.get_major_formatter(), LogFormatter):
                powers.update(axis.get_ticklabels(which="both"))
    for text in set(figure.findobj(Text)) - powers:
        text.set_parse_math(False)


class Picture(NamedTuple):
    """A figure of the report.

    Args:
        name: "study/kind", or the study alone, from which file names are made.
        caption: caption.
        draw: function that draws the figure from ``panels`` and a width in inches.
        panels: contents of its charts by their titles.
    """

    name: str
    caption: str
    draw: Callable[[Mapping[str, list], float], Figure]
    panels: Mapping[str, list]


def write(figure: Figure, path: Path, formats: Iterable[str] = tuple(DATELESS), about: str | None = None) -> Path:
    """Write a figure in several formats; the same figure gives the same bytes.

    Args:
        figure: figure to write.
        path: path of the files, without a suffix.
        formats: file formats.
        about: a description that an SVG file carries.

    Returns:
        The path with the suffix .png, whether or not ``formats`` has it.
    """
    make_literal(figure)
    settings = FONTS | {"svg.hashsalt": path.name}
    for suffix in formats:
        metadata = dict(DATELESS[suffix])
        if about and suffix == "svg":
            metadata["Description"] = about
        with replacing(path.with_name(f"{path.name}.{suffix}")) as part, rc_context(settings):
            figure.savefig(part, format=suffix, dpi=200, metadata=metadata)
    return path.with_name(f"{path.name}.png")


def save(pictures: Iterable[Picture], folder: Path, width: float) -> dict[Path, str]:
    """Draw pictures and write them as PNG, SVG and PDF.

    Args:
        pictures: pictures to draw.
        folder: folder of the files.
        width: width of the pictures in inches.

    Returns:
        The captions of the PNG files by their paths.
    """
    pictures = list(pictures)
    names = unique_names(picture.name for picture in pictures)
    captions = {}
    for picture in pictures:
        folder.mkdir(parents=True, exist_ok=True)
        figure = picture.draw(picture.panels, width)
        path = write(figure, folder / names[picture.name])
        captions[path] = picture.caption
    return captions
