"""Published runs as tables, four files in the folder of a study.

``runs.csv`` has a line for each run with the fields of its record, ``curves.csv`` a line for each evaluation, and
``configs.jsonl`` a line for each distinct configuration with the labels and fingerprints of its runs. ``about.json``
says how the runs were made. The path of a run is that of its folder before, ``<study>/<task>/<label>/seed-<k>``; only
weights lie there.
"""

import functools
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_type_hints

import pandas as pd

from ..config import CONF
from ..disk.atomic import Unreadable, content, write
from ..ops.metrics import Metric
from . import typed_json
from .record import RunRecord, Status

HOME = CONF.parent / "runs" / "published"
RUNS, CURVES, CONFIGS, ABOUT = "runs.csv", "curves.csv", "configs.jsonl", "about.json"
RUN = ["task", "label", "seed"]  # columns of curves.csv that name the run
_LITERALLY = {"keep_default_na": False, "dtype": {"task": str, "label": str}}  # a label "NA" is no missing value
# Fields whose cells are no JSON.
_TEXT = {name for name, hint in get_type_hints(RunRecord).items() if hint in (str, str | None, Metric, Status)}


@dataclass(frozen=True, kw_only=True)
class About:
    """The description of a published study, ``about.json``.

    Args:
        form: number of the form of the tables.
        command: command line of the runs.
        hardware: machine of the runs.
        notes: sentences for the page of results.
        readme: tasks that the README's table shows.
        figure: labels that the figure shows; all if empty.
    """

    __pydantic_config__ = typed_json.STRICT
    form: Literal[2]
    command: str = ""
    hardware: str = ""
    notes: list[str] = field(default_factory=list)
    readme: list[str] = field(default_factory=list)
    figure: list[str] = field(default_factory=list)


class Published(NamedTuple):
    """A published run: its record, its choices as ``config.yaml`` has them, and its evaluations."""

    record: RunRecord
    choices: dict[str, Any]
    evaluations: list[dict[str, float]]


def place(home: Path, record: RunRecord) -> Path:
    """The path of a run below the folder of all studies."""
    return home / record.study / record.task / record.label / f"seed-{record.seed}"


def studies(root: Path) -> list[Path]:
    """List the studies with tables among a folder and the folders in it."""
    return [path for path in (root, *sorted(root.glob("*"))) if (path / RUNS).exists()]


def about(study: Path) -> About:
    """Read the description of a study. Raises ValueError if it cannot be read or has another form."""
    path = study / ABOUT
    try:
        return typed_json.validated(About, content(path))
    except Unreadable as error:
        raise ValueError(f"{path} is not the description of a study of form 2 of version 0.2 ({error})") from None


def read(study: Path) -> dict[Path, Published]:
    """Read the runs of a study by their paths. Raises ValueError for tables that cannot be read."""
    about(study)
    try:
        return _read(study, tuple((study / name).stat().st_mtime_ns for name in (RUNS, CURVES, CONFIGS)))
    except (ValueError, KeyError, TypeError, AttributeError, OSError, Unreadable) as error:
        raise ValueError(f"{study} does not hold tables of published runs ({type(error).__name__}: {error})") from None


@functools.lru_cache(maxsize=8)
def _read(study: Path, _changed: tuple[int, ...]) -> dict[Path, Published]:
    choices, curves = {}, pd.read_csv(study / CURVES, float_precision="round_trip", na_values="", **_LITERALLY)
    for config in map(json.loads, (study / CONFIGS).read_text(encoding="utf-8").splitlines()):
        choices |= dict.fromkeys(config["fingerprints"], config["choices"])
    rows = {run: group.drop(columns=RUN).to_dict("records") for run, group in curves.groupby(RUN)}
    found = {}
    for cells in pd.read_csv(study / RUNS, dtype=str, keep_default_na=False).to_dict("records"):
        values = {name: (cell if name in _TEXT else json.loads(cell)) if cell else None for name, cell in cells.items()}
        record = typed_json.validated(RunRecord, json.dumps(values).encode())
        evaluations = rows.get((record.task, record.label, record.seed), [])
        evaluations = [{name: value for name, value in row.items() if value == value} for row in evaluations]
        found[place(study.parent, record)] = Published(record, choices[record.fingerprint], evaluations)
    return found


def below(folder: Path) -> dict[Path, Published]:
    """List the published runs at a path or below it; empty if no study there has tables."""
    return {path: run for path, run in _around(folder).items() if folder in (path, *path.parents)}


def find(folder: Path) -> Published | None:
    """The published run of a path, None if there is none."""
    return _around(folder).get(folder)


def _around(folder: Path) -> dict[Path, Published]:
    """The runs of the study that a path is or lies in; empty if it has no tables."""
    study = next((path for path in (folder, *folder.parents[:3]) if (path / RUNS).exists()), None)
    return read(study) if study else {}


def save(study: Path, runs: Iterable[Published]) -> None:
    """Write the tables of a study, ``runs.csv`` last, and an empty description if there is none.

    Args:
        study: folder of the study.
        runs: all of its runs.
    """
    runs = sorted(runs, key=lambda run: [getattr(run.record, name) for name in RUN])
    configs: dict[str, dict] = {}
    for record, choices, _ in runs:
        key = json.dumps(choices, sort_keys=True)
        line = configs.setdefault(key, {"labels": [], "fingerprints": [], "choices": choices})
        line["labels"] = sorted({*line["labels"], record.label})
        line["fingerprints"].append(record.fingerprint)
    rows = [{name: getattr(run.record, name) for name in RUN} | row for run in runs for row in run.evaluations]
    cells = [{name: _cell(value) for name, value in asdict(run.record).items()} for run in runs]
    study.mkdir(parents=True, exist_ok=True)
    if not (study / ABOUT).exists():
        empty = {"form": typed_json.FORM, "command": "", "hardware": "", "notes": [], "readme": []}
        write(study / ABOUT, json.dumps(empty, indent=2) + "\n")
    write(study / CONFIGS, "".join(f"{json.dumps(config)}\n" for config in configs.values()))
    write(study / CURVES, pd.DataFrame(rows, columns=None if rows else [*RUN, "step"]).to_csv(index=False))
    write(study / RUNS, pd.DataFrame(cells).to_csv(index=False))


def _cell(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)
