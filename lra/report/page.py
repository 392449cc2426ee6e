"""The report as one self-contained HTML file, which needs no network, no account and no build step."""

import base64
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ..results.lr_search import base
from ..results.palette import COLOURS, Palette
from ..results.summary import Row
from ..results.table import Chapter, Table
from .artifacts import Artifacts
from .plots import learning_curves, speed_accuracy
from .plots.learning_curves import Curve
from .plots.speed_accuracy import Bubble
from .svg import svg

WEB = Path(__file__).with_name("web")
# Files of a run that the page links to.
FILES = ("config.yaml", "metrics.csv", "record.json", "best.ckpt", "last.ckpt")
# Columns of metrics.csv -> titles of the charts of a run.
RUN_CHARTS = {"val": "validation score", "train_loss": "training loss"}


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
        # Quoting includes the colon: a folder named "javascript:..." stays a folder.
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
        "run": _run,
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
    order = {(base(row) != row.label, row.label) for row in rows}
    return Palette(label for _, label in sorted(order))


def _counts(studies: list[Study], rows: Sequence[Row]) -> dict[str, int]:
    return {
        "runs": sum(len(row.runs) for row in rows),
        "mechanisms": len({base(row) for row in rows}),
        "tasks": len({row.task for row in rows}),
        "studies": len(studies),
    }


def _inline_svg(picture: Path) -> Markup:
    """Read the SVG next to a PNG file, without its XML declaration."""
    text = picture.with_suffix(".svg").read_text("utf-8")
    return Markup(text[text.index("<svg") :])


def _run(study: Study, row: Row) -> dict[str, Any]:
    """Collect the contents of one mechanism on one task: curves by seed, configuration, pictures."""
    # One chart for each column of metrics.csv, one line for each seed.
    seeds = [(r.seed, study.runs[folder]) for folder, r in row.runs.items()]
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
