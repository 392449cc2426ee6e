"""Charts as inline SVG for the page."""

import io
import re
from collections.abc import Callable, Sequence
from xml.etree import ElementTree

from matplotlib import rc_context
from matplotlib.figure import Figure

from ..results.figures import SERIES, STYLE, make_literal, place_labels
from ..results.palette import VARIABLES, Palette

# Width and height of a chart in points; the page scales it to the width of its column.
SIZE = (380, 250)
SETTINGS = STYLE | {"font.size": 11, "lines.linewidth": 1.8, "svg.fonttype": "none"}


def svg(title: str, draw: Callable, content: Sequence | dict, palette: Palette, study: str = "") -> str:
    """Draw one chart as SVG, with a group of class ``series`` and a tooltip for each label.

    Colours and fonts come from the page's style sheet. Ids are removed, since they would not be unique in the page.

    Args:
        title: text for screen readers.
        draw: drawing function of ``plots`` that returns a tooltip for each label.
        content: contents of the chart, as ``draw`` takes them.
        palette: colours and dashes of the labels.
        study: value of the groups' ``data-study``.
    """
    width, height = SIZE
    with rc_context(SETTINGS):
        figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
        tooltips = draw(figure.subplots(), content, palette)
        place_labels(figure)
        make_literal(figure)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True)

    # Take the axes out of the document and group their parts by label.
    text = file.getvalue()
    begin = text.index('<g id="axes_1">')
    end = text.rindex("</g>")
    axes = ElementTree.fromstring(text[begin:end])
    groups = _group_series(axes)
    for element in axes.iter():
        _restyle(element)
    for group, (label, tooltip) in zip(groups, tooltips.items(), strict=True):
        group[0].text = tooltip
        group.attrib |= {"class": "series", "data-label": label, "data-study": study}

    axes.attrib |= {"role": "img", "aria-label": title, "viewBox": f"0 0 {width} {height}"}
    axes.tag = "svg"
    return ElementTree.tostring(axes, encoding="unicode")


def _group_series(axes: ElementTree.Element) -> list[ElementTree.Element]:
    """Merge the elements of each label into one group with an empty title."""
    groups: dict[str, ElementTree.Element] = {}
    for part in list(axes):
        name = part.get("id", "")
        if name in groups:
            groups[name].extend(part)
            axes.remove(part)
        elif name.startswith(SERIES):
            groups[name] = part
            part.insert(0, ElementTree.Element("title"))
    return list(groups.values())


def _restyle(element: ElementTree.Element) -> None:
    """Replace colours by style-sheet variables, round coordinates; drop ids, transforms, clips, fonts, whitespace."""
    for name in ("id", "transform", "clip-path"):
        element.attrib.pop(name, None)
    element.tail = None
    element.text = (element.text or "").strip() or None

    for name in {"d", "x", "y"} & set(element.keys()):
        numbers = re.sub(r"-?\d+\.\d+", _round, element.get(name, ""))
        # No space is needed next to the letter of a path command.
        path = re.sub(r"\s*([A-Za-z])\s*", r"\1", numbers.strip())
        element.set(name, path.replace("\n", ""))

    style = element.get("style")
    if style:
        style = re.sub(r"#[0-9a-f]{6}", lambda colour: VARIABLES[colour[0]], style)
        style = re.sub(r"font[\w-]*: [^;]*; ?", "", style)
        element.set("style", style)


def _round(number: re.Match) -> str:
    """Round a coordinate to one decimal, a tenth of a point."""
    return f"{float(number[0]):.1f}"
