"""The report as one self-contained HTML file, which needs no network, no account and no build step."""

import base64
import os
from collections.abc import Sequence
from functools import partial
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
    return environment.get_template("page.html").render(
        css=Markup((WEB / "page.css").read_text(encoding="utf-8")),
        script=Markup((WEB / "page.js").read_text(encoding="utf-8")),
        colours=COLOURS,
        palette=palette,
        Palette=Palette,
        studies=studies,
        chart=lambda *parts: Markup(svg(*parts)),
        plots=plots,
        run=partial(_run, out),
        chapters=chapters,
        damaged=damaged,
        notes=notes,
        legend=legend,
        counts=counts,
        inline=_inline,
    )


def _run(out: Path, study: Study, row: Row) -> dict[str, Any]:
    """The contents of one mechanism on one task: seeds with links to their files, curves, configuration, pictures."""
    charts = {}
    for column, name in (("val", "dev score"), ("train_loss", "train loss")):
        curves = {r.seed: study.runs[folder].curves.get(column) for folder, r in row.runs.items()}
        if curves := {seed: curve for seed, curve in curves.items() if curve}:
            charts[name] = curves
    return {
        "seeds": [
            {"record": r, "files": {name: _link(folder / name, out) for name in FILES if (folder / name).exists()}}
            for folder, r in row.runs.items()
        ],
        "curves": charts,
        "config": next(filter(None, (study.runs[folder].config for folder in row.runs)), {}),
        "pictures": [
            (f"seed {r.seed}, {name}", "data:image/png;base64," + base64.b64encode(picture).decode())
            for folder, r in row.runs.items()
            for name, picture in study.runs[folder].pictures.items()
        ],
    }


def _link(path: Path, out: Path) -> str:
    return quote(Path(os.path.relpath(path, out)).as_posix())  # quotes the colon of a folder named javascript:...


def _inline(picture: Path) -> Markup:
    """Read the SVG beside a PNG, without the XML declaration."""
    text = picture.with_suffix(".svg").read_text(encoding="utf-8")
    return Markup(text[text.index("<svg") :])
