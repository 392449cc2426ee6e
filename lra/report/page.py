"""The report as one HTML file that needs nothing else: no network, no account, no build step."""

import base64
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from . import svg
from .beside import Beside
from .boards import board, details, place
from .curves import Bubble, Curve
from .grid import Grid, Part
from .palette import COLOURS, Palette
from .summary import Row, sections
from .text import LEGEND

WEB = Path(__file__).with_name("web")
FILES = ("config.yaml", "metrics.csv", "record.json", "best.ckpt", "last.ckpt")


class Study(NamedTuple):
    """Everything of one study that is drawn: ``runs`` holds what lies in each folder."""

    name: str
    rows: list[Row]
    curves: dict[str, list[Curve]]
    bubbles: dict[tuple[str, str], list[Bubble]]
    runs: dict[Path, Beside]


def render(
    studies: list[Study], papers: list[Grid], parts: Sequence[Part], damaged: list[str], notes: list[str], out: Path
) -> str:
    """The page as text; links to files are relative to the folder ``out``."""
    environment = Environment(
        loader=FileSystemLoader(WEB), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    palette = Palette(sorted({row.label for study in studies for row in study.rows}))
    return environment.get_template("page.html").render(
        css=Markup((WEB / "page.css").read_text(encoding="utf-8")),
        script=Markup((WEB / "page.js").read_text(encoding="utf-8")),
        colours=COLOURS,
        palette=palette,
        studies=[_study(study, palette, out) for study in studies],
        papers=papers,
        parts=parts,
        damaged=damaged,
        notes=notes,
        legend=LEGEND,
        counts=_counts(studies),
    )


def _counts(studies: list[Study]) -> dict[str, int]:
    rows = [row for study in studies for row in study.rows]
    return {
        "runs": sum(len(row.runs) for row in rows),
        "mechanisms": len({row.label for row in rows}),
        "tasks": len({row.task for row in rows}),
        "studies": len(studies),
    }


def _study(study: Study, palette: Palette, out: Path) -> dict[str, Any]:
    learning = [Markup(svg.learning(task, study.name, curves, palette)) for task, curves in study.curves.items()]
    trade = {
        place: Markup(svg.trade(" on ".join(place), study.name, group, palette))
        for place, group in study.bubbles.items()
    }
    return {
        "name": study.name,
        "board": board(study.name, study.rows),
        "details": [details(study.name, section) for section in sections(study.rows)],
        "labels": sorted({row.label for row in study.rows}),
        "learning": dict(zip(study.curves, learning, strict=True)),
        "trade": trade,
        "runs": [_runs(study, row, out) for row in study.rows],
    }


def _runs(study: Study, row: Row, out: Path) -> dict[str, Any]:
    """One mechanism on one task: its seeds with links to their files, curves, configuration and pictures."""
    curves = {}
    for column, name in (("val", "dev score"), ("train_loss", "train loss")):
        seeds = {r.seed: study.runs[folder].curves.get(column) for folder, r in row.runs.items()}
        if seeds := {seed: curve for seed, curve in seeds.items() if curve}:
            curves[name] = Markup(svg.one_run(f"{row.label} on {row.task}: {name}", seeds))
    folders = list(row.runs)
    return {
        "row": row,
        "id": place(row),
        "seeds": [
            {"record": r, "files": {name: _link(folder / name, out) for name in FILES if (folder / name).exists()}}
            for folder, r in row.runs.items()
        ],
        "curves": curves,
        "config": next(filter(None, (study.runs[folder].config for folder in folders)), {}),
        "pictures": [
            (f"seed {row.runs[folder].seed}, {name}", _inline(picture))
            for folder in folders
            for name, picture in study.runs[folder].pictures.items()
        ],
    }


def _link(path: Path, out: Path) -> str:
    return quote(Path(os.path.relpath(path, out)).as_posix())  # also the colon of a folder named javascript:...


def _inline(picture: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(picture).decode()
