"""The charts of ``plots`` as figures: inline SVG for the page, PNG and PDF as files."""

import io
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
from adjustText import adjust_text
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import LogFormatter

from ..console import visible
from ..disk.atomic import replacing
from .palette import INK, KINDS, RULE, SOFT, VARIABLES, Palette, family, look
from .plots import SERIES, trade
from .table import stem

COLUMN, TEXT = 3.25, 6.75  # inches: a column of a paper in two columns, and both
CHART = 2.1  # inches: height of a chart of a file
PAGE = (380, 250)  # points of a chart of the page, which are its pixels at its full size
LETTER = 0.6  # mean width of a letter in sizes of the font; a line of a legend is six letters
CORNERS = np.array([(-1, -1), (-1, 1), (1, -1), (1, 1)])  # of the square around a bubble
FONTS = {"pdf.fonttype": 42, "ps.fonttype": 42}  # TrueType, as publishers ask
STYLE = {
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
DATELESS = {"png": {}, "svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None}}  # metadata by format


def grid(
    titles: Collection[str], width: float, wide: float = COLUMN, high: float = CHART, **options
) -> tuple[Figure, list[Axes]]:
    """Make a figure of charts with titles, as many side by side as the width has room for.

    Args:
        titles: titles of the charts.
        width: width of the figure in inches.
        wide, high: size of a chart in inches.
        options: options of matplotlib's ``subplots``.
    """
    across = max(1, min(len(titles), round(width / wide)))
    down = math.ceil(len(titles) / across)
    figure = Figure(figsize=(width, high * down), layout="constrained")
    charts = list(figure.subplots(down, across, squeeze=False, **options).flat)
    for axes, title in zip(charts, titles, strict=False):
        axes.set_title(title)
    for axes in charts[len(titles) :]:
        axes.remove()
    return figure, charts[: len(titles)]


@rc_context(PRINT)
def charts(panels: Mapping[str, Sequence], draw: Callable, palette: Palette, width: float = TEXT) -> Figure:
    """Draw charts of one kind under one legend.

    Args:
        panels: the contents of each chart by its title.
        draw: a function of ``plots``.
        palette: colours and forms of the labels; the lines of others are grey.
        width: width of the figure in inches.
    """
    every = {item.label for content in panels.values() for item in content}
    own = palette.line if draw is not trade else lambda label: palette.marker(label) | {"linestyle": "none"}
    looks = {label: own(label) for label in sorted(every & palette.place.keys())}
    if others := len(every) - len(looks):
        looks[f"{others} others"] = {"color": "0.85"}
    figure, axes = grid(panels, width)
    for one, content in zip(axes, panels.values(), strict=True):
        draw(one, sorted(content, key=lambda item: item.label in palette.place), palette)  # grey ones behind
    line = 6 + max(map(len, looks), default=0)
    _key(figure, looks, int(width * 72 / (LETTER * PRINT["font.size"] * line)))
    settle(figure)
    return figure


def families(figure: Figure, labels: Iterable[str]) -> None:
    """Show the families of labels below a figure, which becomes higher."""
    kinds = sorted(set(map(family, labels)), key=KINDS.index)
    _key(figure, {kind: look(kind) | {"linestyle": "none"} for kind in kinds}, round(figure.get_figwidth() / 1.6))


def _key(figure: Figure, looks: Mapping[str, dict], columns: int) -> None:
    columns = max(1, columns)
    figure.set_figheight(figure.get_figheight() + 0.18 * math.ceil(len(looks) / columns))
    handles = [Line2D([], [], **look) for look in looks.values()]
    figure.legend(handles, looks.keys(), loc="outside lower center", ncols=columns)


def settle(figure: Figure, leaders: bool = False) -> None:
    """Move the labels of charts apart, and remove those without space, unless leaders show where they belong.

    Args:
        figure: figure with everything in it.
        leaders: whether lines lead from labels to their points.
    """
    every = {axes: [text for text in axes.texts if type(text) is Text] for axes in figure.axes}
    labels = {axes: texts for axes, texts in every.items() if texts}
    if labels:
        lay_out(figure)
    for axes, texts in labels.items():
        points = [axes.transData.transform([text.get_position() for text in texts])]
        for bubble in axes.collections:
            if isinstance(bubble, PathCollection):
                radius = bubble.get_sizes()[0] ** 0.5 / 2 * figure.dpi / 72
                points.append(axes.transData.transform(bubble.get_offsets()) + radius * CORNERS)
        x, y = axes.transData.inverted().transform(np.concatenate(points)).T
        arrows = {"arrowstyle": "-", "color": SOFT, "lw": 0.5} if leaders else None
        adjust_text(texts, x, y, ax=axes, expand=(1.2, 1.6), iter_lim=100, arrowprops=arrows)
        boxes = []
        for text in () if leaders else texts:
            if (box := text.get_window_extent()).count_overlaps(boxes):
                text.remove()
            boxes.append(box)


def write(figure: Figure, path: Path, kinds: Iterable[str] = tuple(DATELESS), about: str | None = None) -> Path:
    """Write a figure in several formats without a date, so that the same figure gives the same bytes.

    Args:
        figure: figure to write.
        path: path of the files, without a suffix.
        kinds: file formats.
        about: a description that an SVG file carries.

    Returns:
        The path of the PNG file.
    """
    _literal(figure)
    for kind in kinds:
        metadata = DATELESS[kind] | ({"Description": about} if about and kind == "svg" else {})
        with replacing(path.with_name(f"{path.name}.{kind}")) as part, rc_context({**FONTS, "svg.hashsalt": path.name}):
            figure.savefig(part, format=kind, dpi=200, metadata=metadata)
    return path.with_name(f"{path.name}.png")


class Picture(NamedTuple):
    """A figure: its name and caption, the function that draws it, and the contents of its charts by their titles."""

    name: str
    caption: str
    draw: Callable[[Mapping[str, list], float], Figure]
    panels: Mapping[str, list]


def save(pictures: Iterable[Picture], folder: Path, width: float) -> list[Path]:
    """Draw pictures, ``width`` inches wide, and write them as PNG, SVG and PDF; returns the paths of the PNG files."""
    paths = []
    for made in pictures:
        folder.mkdir(parents=True, exist_ok=True)
        paths.append(write(made.draw(made.panels, width), folder / stem(made.name)))
    return paths


def svg(title: str, draw: Callable, content: Sequence | dict, palette: Palette, study: str = "") -> str:
    """Draw one chart as SVG for the page, with a group of class ``series`` and a tooltip for each label.

    Colours and fonts are those of the page's style sheet. Ids are removed, since they would not be unique in the page.

    Args:
        title: text for screen readers.
        draw: ``learning``, ``seeds`` or ``trade``.
        content: content of the chart, as ``draw`` takes it.
        palette: colours and dashes of the labels.
        study: value of the groups' ``data-study``.
    """
    file = io.StringIO()
    with rc_context(STYLE | {"font.size": 11, "lines.linewidth": 1.8, "svg.fonttype": "none"}):
        figure = Figure(figsize=np.divide(PAGE, 72), layout="constrained")
        notes = draw(figure.subplots(), content, palette)
        settle(figure)
        _literal(figure)
        figure.savefig(file, format="svg", transparent=True)
    text = file.getvalue()
    axes = ElementTree.fromstring(text[text.index('<g id="axes_1">') : text.rindex("</g>")])
    groups: dict[str, ElementTree.Element] = {}
    for part in list(axes):
        name = part.get("id", "")
        if name in groups:
            groups[name].extend(part)
            axes.remove(part)
        elif name.startswith(SERIES):
            groups[name] = part
            part.insert(0, ElementTree.Element("title"))
    for element in axes.iter():
        _restyle(element)
    for group, (label, note) in zip(groups.values(), notes.items(), strict=True):
        group[0].text = note
        group.attrib |= {"class": "series", "data-label": label, "data-study": study}
    axes.attrib |= {"role": "img", "aria-label": title, "viewBox": f"0 0 {PAGE[0]} {PAGE[1]}"}
    axes.tag = "svg"
    return ElementTree.tostring(axes, encoding="unicode")


def lay_out(figure: Figure) -> None:
    """Place all parts of a figure; its texts are literal before, since a formula with an error has no size."""
    _literal(figure)
    figure.draw_without_rendering()


def _literal(figure: Figure) -> None:
    """Show all texts of a figure as they are: two dollars are no formula, a control character is no glyph.

    The powers of ten at logarithmic axes are matplotlib's own formulas.
    """
    axes = [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    powers = [a.get_ticklabels(which="both") for a in axes if isinstance(a.get_major_formatter(), LogFormatter)]
    for text in set(figure.findobj(Text)).difference(*powers):
        text.set(text=visible(text.get_text()), parse_math=False)


def _restyle(element: ElementTree.Element) -> None:
    """Replace colours by variables of the style sheet; drop ids, clips, fonts, blanks, and digits after the first."""
    for name in ("id", "transform", "clip-path"):
        element.attrib.pop(name, None)
    element.tail, element.text = None, (element.text or "").strip() or None
    for name in {"d", "x", "y"} & set(element.keys()):
        numbers = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}", element.get(name))
        element.set(name, re.sub(r"\s*([A-Za-z])\s*", r"\1", numbers.strip()).replace("\n", ""))
    if style := element.get("style"):
        style = re.sub(r"#[0-9a-f]{6}", lambda colour: VARIABLES[colour[0]], style)
        element.set("style", re.sub(r"font[\w-]*: [^;]*; ?", "", style))
