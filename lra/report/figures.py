"""The charts of ``plots`` as figures: inline SVG for the page, PNG and PDF as files."""

import io
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogFormatter, StrMethodFormatter

from ..console import visible
from ..disk.atomic import replacing
from .palette import COLOURS, GROUND, INK, RULE, SOFT, VARIABLES, Palette
from .plots import FONT, SERIES, dashes, learning, short, ticks

WIDTH, HEIGHT, TITLE = 380, 250, 24  # of a chart, points: pixels of the page at its full size
LEFT, RIGHT, TOP, BOTTOM = 40, 12, 10, 34
HANDLE, LETTER = 48, 6  # of a legend: the line with its margins, the mean width of a letter
DATELESS = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None, "Creator": None}}


def save(
    path: Path,
    panels: dict[str, Sequence],
    draw: Callable,
    palette: Palette,
    kinds: Sequence[str] = ("png", "pdf"),
    about: str | None = None,
) -> None:
    """Draw charts of one kind side by side, three in a line, under one legend.

    Args:
        path: path of the files, without a suffix.
        panels: the contents of each chart by its title.
        draw: a function of ``plots``.
        palette: colours and dashes of the labels.
        kinds: file formats.
        about: a description that an SVG file carries.
    """
    labels = sorted({item.label for content in panels.values() for item in content})
    across, down = min(3, len(panels)), math.ceil(len(panels) / 3)
    width = across * WIDTH
    longest = HANDLE + LETTER * max(map(len, labels), default=0)
    columns = max(1, min(2 * across, int(width / longest)))
    below = 20 + 16 * math.ceil(len(labels) / columns)
    height = down * (HEIGHT + TITLE) + below
    figure = Figure(figsize=(width / 72, height / 72))
    for i, (title, content) in enumerate(panels.items()):
        axes = _axes(figure, i % across * WIDTH, height - (i // across + 1) * (HEIGHT + TITLE))
        axes.set_title(title, fontsize=FONT + 1, loc="left", color=INK)
        draw(axes, content, palette)
    figure.legend(
        [_handle(label, draw, palette) for label in labels],
        labels,
        loc="lower center",
        ncols=columns,
        frameon=False,
        fontsize=FONT - 1,
    )
    write(figure, path, kinds, about)


def write(figure: Figure, path: Path, kinds: Sequence[str], about: str | None = None, **options) -> None:
    """Write a figure in several formats without a date, so that the same figure gives the same bytes.

    Args:
        figure: figure to write.
        path: path of the files, without a suffix.
        kinds: file formats.
        about: a description that an SVG file carries.
        options: options of matplotlib's ``savefig``.
    """
    _literal(figure)
    for kind in kinds:
        metadata = DATELESS[kind] | ({"Description": about} if about and kind == "svg" else {})
        with replacing(path.with_name(f"{path.name}.{kind}")) as part, rc_context({"svg.hashsalt": path.name}):
            figure.savefig(part, format=kind, dpi=120, metadata=metadata, **options)


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
    figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72))
    notes = draw(_axes(figure), content, palette)
    _literal(figure)
    file = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):
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
    axes.attrib |= {"role": "img", "aria-label": title, "viewBox": f"0 0 {WIDTH} {HEIGHT}"}
    axes.tag = "svg"
    return ElementTree.tostring(axes, encoding="unicode")


def _literal(figure: Figure) -> None:
    """Show all texts of a figure as they are: two dollars are no formula, a control character is no glyph.

    The powers of ten at logarithmic axes are matplotlib's own formulas.
    """
    axes = [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    powers = [a.get_ticklabels(which="both") for a in axes if isinstance(a.get_major_formatter(), LogFormatter)]
    for text in set(figure.findobj(Text)).difference(*powers):
        text.set(text=visible(text.get_text()), parse_math=False)


def _restyle(element: ElementTree.Element) -> None:
    """Replace colours by variables of the style sheet; drop ids, fonts, blanks, and digits after the first decimal."""
    for name in ("id", "transform"):
        element.attrib.pop(name, None)
    element.tail, element.text = None, (element.text or "").strip() or None
    for name in {"d", "x", "y"} & set(element.keys()):
        numbers = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}", element.get(name))
        element.set(name, re.sub(r"\s*([A-Za-z])\s*", r"\1", numbers.strip()).replace("\n", ""))
    if style := element.get("style"):
        style = re.sub(r"#[0-9a-f]{6}", lambda colour: VARIABLES[colour[0]], style)
        element.set("style", re.sub(r"font[\w-]*: [^;]*; ?", "", style))


def _axes(figure: Figure, x: float = 0, y: float = 0) -> Axes:
    """Add the axes of a chart whose lower left corner is at x, y, in points from that of the figure."""
    width, height = 72 * figure.get_size_inches()
    inner = (WIDTH - LEFT - RIGHT) / width, (HEIGHT - TOP - BOTTOM) / height
    axes = figure.add_axes(((x + LEFT) / width, (y + BOTTOM) / height, *inner))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines.bottom.set(color=SOFT, linewidth=1)
    axes.grid(axis="y", color=RULE, linewidth=1, clip_on=False)
    axes.tick_params(which="both", bottom=False, left=False, labelsize=FONT, labelcolor=SOFT)
    axes.xaxis.label.set(color=SOFT, size=FONT)
    axes.xaxis.labelpad = 3
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(ticks())
    axes.xaxis.set_major_formatter(FuncFormatter(short))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    return axes


def _handle(label: str, draw: Callable, palette: Palette) -> Line2D:
    colour = COLOURS[palette.colour(label)][0]
    if draw is learning:
        return Line2D([], [], color=colour, ls=dashes(palette.dash(label)))
    return Line2D([], [], color=colour, marker="o", ls="", markerfacecolor=GROUND if palette.turn(label) else colour)
