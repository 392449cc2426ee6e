"""The report as one self-contained HTML file, which needs no network, no account and no build step.

Charts are inline SVG. The files of a run are read as untrusted input.
"""

import base64
import io
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote
from xml.etree import ElementTree

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure

from ..evaluate import record as fresh_record
from ..io.atomic import Unreadable, content
from ..results.figures import SERIES, STYLE, make_literal, place_labels
from ..results.lr_search import label_without_rate
from ..results.palette import COLOURS, VARIABLES, Palette
from ..results.summary import Row
from ..results.table import Chapter, Table
from ..runs import reader
from .plots import learning_curves, speed_accuracy
from .plots.learning_curves import Curve
from .plots.speed_accuracy import Bubble

WEB = Path(__file__).with_name("web")
# Files of a run that the page links to.
FILES = ("config.yaml", "metrics.csv", "record.json", "best.ckpt", "last.ckpt")
# Columns of metrics.csv -> titles of the charts of a run.
RUN_CHARTS = {"val": "validation score", "train_loss": "training loss"}
# Width and height of a chart in points; the page scales it to the width of its column.
CHART_SIZE = (380, 250)
CHART_SETTINGS = STYLE | {"font.size": 11, "lines.linewidth": 1.8, "svg.fonttype": "none"}
# First bytes of a PNG file.
PNG = b"\x89PNG\r\n\x1a\n"


class Artifacts(NamedTuple):
    """The files of one run: ``curves`` by column and step, flat ``config``, ``pictures`` by file stem."""

    curves: dict[str, dict[int, float]]
    config: dict[str, Any]
    pictures: dict[str, bytes]


class Study(NamedTuple):
    """The contents of one study.

    Args:
        name: name of the study.
        rows: its results.
        results: tables over all tasks.
        details: tables of single tasks and of their means.
        curves: learning curves by task.
        bubbles: speed and accuracy by (task, device).
        runs: files of each run by its run directory.
    """

    name: str
    rows: list[Row]
    results: list[Table]
    details: list[Table]
    curves: dict[str, list[Curve]]
    bubbles: dict[tuple[str, str], list[Bubble]]
    runs: dict[Path, Artifacts]


def render(
    studies: list[Study],
    chapters: Sequence[Chapter],
    legend: str,
    notes: list[str],
    damaged: list[str],
    out: Path,
) -> str:
    """Render the page.

    Args:
        studies: contents of the studies.
        chapters: the other parts; the last one holds the papers' tables.
        legend: meaning of the columns and marks of all tables.
        notes: Markdown items on the published values.
        damaged: messages about skipped files.
        out: folder of the page, to which links to files are relative.
    """

    def link(path: Path) -> str:
        return quote(Path(os.path.relpath(path, out)).as_posix())

    def chart(*parts) -> Markup:
        return Markup(svg(*parts))

    # Autoescape: names and messages may contain HTML.
    environment = Environment(
        loader=FileSystemLoader(WEB),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "colours": COLOURS,
        "Palette": Palette,
        "files": FILES,
        "row_contents": _row_contents,
        "link": link,
        "inline": _inline_svg,
        "chart": chart,
        "draw_curves": learning_curves.draw,
        "draw_seeds": learning_curves.draw_seeds,
        "draw_speed": speed_accuracy.draw,
    }
    rows = [row for study in studies for row in study.rows]
    template = environment.get_template("page.html")
    return template.render(
        studies=studies,
        chapters=chapters,
        damaged=damaged,
        notes=notes,
        legend=legend,
        counts=_counts(studies, rows),
        palette=_palette(rows),
    )


def _palette(rows: Sequence[Row]) -> Palette:
    """Give colours to all labels, labels without a learning rate first."""
    order = {(label_without_rate(row) != row.label, row.label) for row in rows}
    return Palette(label for _, label in sorted(order))


def _counts(studies: list[Study], rows: Sequence[Row]) -> dict[str, int]:
    return {
        "runs": sum(len(row.runs) for row in rows),
        "mechanisms": len({label_without_rate(row) for row in rows}),
        "tasks": len({row.task for row in rows}),
        "studies": len(studies),
    }


def _inline_svg(picture: Path) -> Markup:
    """Read the SVG next to a PNG file, without its XML declaration."""
    text = picture.with_suffix(".svg").read_text("utf-8")
    return Markup(text[text.index("<svg") :])


def _row_contents(study: Study, row: Row) -> dict[str, Any]:
    """Collect the contents of one mechanism on one task: curves by seed, configuration, pictures."""
    # One chart for each column of metrics.csv, one line for each seed.
    seeds = [(result.seed, study.runs[folder]) for folder, result in row.runs.items()]
    charts = {}
    for column, title in RUN_CHARTS.items():
        curves = {}
        for seed, files in seeds:
            if files.curves.get(column):
                curves[seed] = files.curves[column]
        if curves:
            charts[title] = curves

    # Pictures are part of the page.
    pictures = []
    for seed, files in seeds:
        for name, picture in files.pictures.items():
            data = base64.b64encode(picture).decode()
            caption = f"seed {seed}, {name}"
            pictures.append((caption, f"data:image/png;base64,{data}"))

    # Seeds normally share their configuration; the first readable one is shown.
    configurations = [files.config for _, files in seeds if files.config]
    config = configurations[0] if configurations else {}
    return {"curves": charts, "config": config, "pictures": pictures}


def read_artifacts(folder: Path) -> tuple[Artifacts, list[str]]:
    """Read the files of a run.

    Args:
        folder: run directory.

    Returns:
        The files, each part empty if the run never had it, and a message for each file that cannot be shown.
    """
    artifacts = Artifacts({}, {}, {})
    messages = []
    # Only to report a damaged fresh test, which the tables leave out without a message.
    fresh_test = folder / fresh_record.NAME
    if fresh_test.exists():
        try:
            fresh_record.load(fresh_test)
        except ValueError as error:
            messages.append(str(error))
    for part, load in ((artifacts.curves, reader.read_curves), (artifacts.config, reader.read_choices)):
        try:
            part.update(load(folder))
        except ValueError as error:
            messages.append(str(error))
    for path in sorted((folder / "maps").glob("*.png")):
        try:
            artifacts.pictures[path.stem] = _picture(path)
        except Unreadable as error:
            messages.append(f"{path} is not shown: {error}")
    return artifacts, messages


def _picture(path: Path) -> bytes:
    data = content(path)
    if not data.startswith(PNG):
        raise Unreadable("it is not a PNG")
    return data


def svg(title: str, draw: Callable, contents: Sequence | dict, palette: Palette, study: str = "") -> str:
    """Draw one chart as SVG, with a group of class ``series`` and a tooltip for each label.

    Colours and fonts come from the page's style sheet. Ids are removed, since they would not be unique in the page.

    Args:
        title: text for screen readers.
        draw: drawing function of ``plots`` that returns a tooltip for each label.
        contents: contents of the chart, as ``draw`` takes them.
        palette: colours and dashes of the labels.
        study: value of the groups' ``data-study``.
    """
    width, height = CHART_SIZE
    with rc_context(CHART_SETTINGS):
        figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
        tooltips = draw(figure.subplots(), contents, palette)
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
    """Replace colours by style-sheet variables, round coordinates; drop ids, clips, fonts, whitespace."""
    for name in ("id", "clip-path"):
        element.attrib.pop(name, None)
    # matplotlib rotates all texts, the label of the vertical axis by a right angle and the others by none.
    if not element.get("transform", "").startswith("rotate(-90"):
        element.attrib.pop("transform", None)
    element.tail = None
    element.text = (element.text or "").strip() or None

    for name in {"d", "x", "y"} & set(element.keys()):
        numbers = re.sub(r"-?\d+\.\d+", _round, element.get(name, ""))
        # No space is needed next to the letter of a path command.
        path = re.sub(r"\s*([A-Za-z])\s*", r"\1", numbers.strip())
        element.set(name, path.replace("\n", ""))

    style = element.get("style")
    if style:
        style = re.sub(r"#[0-9a-f]{6}", lambda match: VARIABLES[match[0]], style)
        style = re.sub(r"font[\w-]*: [^;]*; ?", "", style)
        element.set("style", style)


def _round(match: re.Match) -> str:
    """Round a coordinate to one decimal, a tenth of a point."""
    return f"{float(match[0]):.1f}"
