"""The report as one self-contained HTML file, which needs no network, no account and no build step."""

import base64
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from . import plots
from .artifacts import Artifacts
from .figures import svg
from .palette import COLOURS, Palette
from .rates import base
from .summary import Row
from .table import Chapter, Table

WEB = Path(__file__).with_name("web")
FILES = ("config.yaml", "metrics.csv", "record.json", "best.ckpt", "last.ckpt")


class Study(NamedTuple):
    """The contents of one study: ``curves`` by task, ``bubbles`` by task and device, ``runs`` by folder."""

    name: str
    rows: list[Row]
    results: list[Table]
    details: list[Table]
    curves: dict[str, list[plots.Curve]]
    bubbles: dict[tuple[str, str], list[plots.Bubble]]
    runs: dict[Path, Artifacts]


def render(
    studies: list[Study], chapters: Sequence[Chapter], legend: str, notes: list[str], damaged: list[str], out: Path
) -> str:
    """Render the page.

    Args:
        studies: their contents.
        chapters: the other parts; the last one holds the papers' tables.
        legend: meaning of the columns.
        notes: Markdown items on the published values.
        damaged: lines on files that could not be read.
        out: folder of the page, to which links to files are relative.
    """
    environment = Environment(
        loader=FileSystemLoader(WEB), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    rows = [row for study in studies for row in study.rows]
    found = {row.label: (base(row) != row.label, row.label) for row in rows}
    palette = Palette(sorted(found, key=found.get))  # first colours for labels without a rate
    counts = {
        "runs": sum(len(row.runs) for row in rows),
        "mechanisms": len({base(row) for row in rows}),
        "tasks": len({row.task for row in rows}),
        "studies": len(studies),
    }
    environment.globals |= {"colours": COLOURS, "Palette": Palette, "plots": plots, "files": FILES, "run": _run}
    link = lambda path: quote(Path(os.path.relpath(path, out)).as_posix())  # also the colon of a javascript:... folder
    inline = lambda picture: Markup("<svg" + picture.with_suffix(".svg").read_text("utf-8").partition("<svg")[2])
    environment.globals |= {"link": link, "inline": inline, "chart": lambda *parts: Markup(svg(*parts))}
    return environment.get_template("page.html").render(
        studies=studies, chapters=chapters, damaged=damaged, notes=notes, legend=legend, counts=counts, palette=palette
    )


def _run(study: Study, row: Row) -> dict[str, Any]:
    """The contents of one mechanism on one task: curves by seed, configuration, pictures."""
    seeds = [(r, study.runs[folder]) for folder, r in row.runs.items()]
    charts = {}
    for column, name in (("val", "dev score"), ("train_loss", "train loss")):
        if curves := {r.seed: found.curves[column] for r, found in seeds if found.curves.get(column)}:
            charts[name] = curves
    return {
        "curves": charts,
        "config": next((found.config for _, found in seeds if found.config), {}),
        "pictures": [
            (f"seed {r.seed}, {name}", "data:image/png;base64," + base64.b64encode(picture).decode())
            for r, found in seeds
            for name, picture in found.pictures.items()
        ],
    }
