"""Published runs as tables: four files in the folder of a study.

``runs.csv`` has one line per run with the fields of its record, ``curves.csv`` one line per evaluation, and
``configs.jsonl`` one line per distinct configuration with the labels and fingerprints of its runs. ``about.json``
describes how the runs were made. A published run keeps the path of its run directory,
``<study>/<task>/<label>/seed-<k>``; only weights are stored there.
"""

import functools
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_type_hints

import pandas as pd

from ..config import CONF
from ..io import typed_json
from ..io.atomic import Unreadable, content, write
from ..ops.metrics import Metric
from .record import RunRecord, Status

HOME = CONF.parent / "runs" / "published"
RUNS = "runs.csv"
CURVES = "curves.csv"
CONFIGS = "configs.jsonl"
ABOUT = "about.json"
# Columns of curves.csv that name the run.
KEY = ["task", "label", "seed"]
# Options of pandas: a label "NA" is not a missing value.
_VERBATIM = {"keep_default_na": False, "dtype": {"task": str, "label": str}}
# Fields whose cells are text; the cells of all others are JSON.
_TEXT_TYPES = (str, str | None, Metric, Status)
_FIELD_TYPES = get_type_hints(RunRecord)
_TEXT_FIELDS = {name for name, kind in _FIELD_TYPES.items() if kind in _TEXT_TYPES}


@dataclass(frozen=True, kw_only=True)
class About:
    """The description of a published study, ``about.json``.

    Args:
        form: version of the format of the tables.
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


def run_path(study: Path, record: RunRecord) -> Path:
    """The path of a run below the folder of its study, which a copy or a submission may have renamed."""
    return study / record.task / record.label / f"seed-{record.seed}"


def studies(root: Path) -> list[Path]:
    """List the studies with tables among a folder and the folders in it."""
    folders = [root, *sorted(root.glob("*"))]
    return [path for path in folders if (path / RUNS).exists()]


def find_study(name: str) -> Path:
    """Return the folder of a published study of this repository. Raises ValueError for an unknown name."""
    folders = {folder.name: folder for folder in studies(HOME)}
    if name not in folders:
        raise ValueError(f"{name!r} is not a published study; choose from {', '.join(folders)}")
    return folders[name]


def about(study: Path) -> About:
    """Read the description of a study. Raises ValueError if it cannot be read or has another format."""
    path = study / ABOUT
    try:
        return typed_json.validated(About, content(path))
    except Unreadable as error:
        raise ValueError(f"{path} is not the description of a study of format {typed_json.FORM} ({error})") from None


def read(study: Path) -> dict[Path, Published]:
    """Read the runs of a study by their paths. Raises ValueError for tables that cannot be read."""
    about(study)
    try:
        # The times of the files are arguments, so a changed table is read again.
        paths = [study / name for name in (RUNS, CURVES, CONFIGS)]
        modified = tuple(path.stat().st_mtime_ns for path in paths)
        return _read(study, modified)
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise ValueError(f"{study} does not hold tables of published runs ({type(error).__name__}: {error})") from None


@functools.lru_cache(maxsize=32)
def _read(study: Path, _modified: tuple[int, ...]) -> dict[Path, Published]:
    choices = _read_choices(study / CONFIGS)
    curves = _read_curves(study / CURVES)
    table = pd.read_csv(study / RUNS, dtype=str, keep_default_na=False)
    runs = {}
    for line in table.to_dict("records"):
        # Convert the cells of a line to JSON, so that its record is validated like a record in a file.
        values = {name: _value(name, cell) for name, cell in line.items()}
        text = json.dumps(values)
        record = typed_json.validated(RunRecord, text.encode())
        path = run_path(study, record)
        if path in runs:
            raise ValueError(f"two runs are {record.task} {record.label} seed {record.seed}")
        runs[path] = Published(record, choices[record.fingerprint], curves.get(_key(record), []))
    return runs


def _read_choices(path: Path) -> dict[str, dict[str, Any]]:
    """Read configs.jsonl: the choices of the runs by fingerprint."""
    choices: dict[str, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        config = json.loads(line)
        choices |= dict.fromkeys(config["fingerprints"], config["choices"])
    return choices


def _read_curves(path: Path) -> dict[tuple, list[dict[str, float]]]:
    """Read curves.csv: the evaluations of the runs by task, label and seed."""
    table = pd.read_csv(path, float_precision="round_trip", na_values="", **_VERBATIM)
    curves: dict[tuple, list[dict[str, float]]] = defaultdict(list)
    for line in table.to_dict("records"):
        key = tuple(line.pop(name) for name in KEY)
        curves[key].append(_without_nan(line))
    return curves


def _value(name: str, cell: str) -> Any:
    """The value of a cell of runs.csv; an empty cell is None."""
    if not cell:
        return None
    return cell if name in _TEXT_FIELDS else json.loads(cell)


def _cell(value: Any) -> str:
    """The cell of a value, the inverse of ``_value``."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _without_nan(line: dict[str, float]) -> dict[str, float]:
    """An evaluation without the columns that its run does not have: pandas reads them as NaN, and NaN != NaN."""
    return {name: value for name, value in line.items() if value == value}


def below(folder: Path) -> dict[Path, Published]:
    """List the published runs at a path or below it; empty unless the path is in a published study, or is one."""
    # A relative path may contain the folder of its study only in its absolute form, see ``find``.
    study_runs = _runs_of_study(folder) or _runs_of_study(folder.absolute())
    home = folder.absolute()
    return {path: run for path, run in study_runs.items() if path.absolute().is_relative_to(home)}


def find(folder: Path) -> Published | None:
    """The published run of a path, None if there is none."""
    # A relative path such as cur_abs/seed-0 has the folder of its study only in its absolute form.
    folder = folder.absolute()
    return _runs_of_study(folder).get(folder)


def _runs_of_study(folder: Path) -> dict[Path, Published]:
    """The runs of the study that contains a path; empty if the study has no tables."""
    # A path is a study, or one to three levels below one: task, label, seed.
    for path in (folder, *folder.parents[:3]):
        if (path / RUNS).exists():
            return read(path)
    return {}


def save(study: Path, runs: Iterable[Published]) -> None:
    """Write the tables of a study, ``runs.csv`` last, and an empty description if there is none.

    Args:
        study: folder of the study.
        runs: all of its runs.
    """
    runs = sorted(runs, key=lambda run: _key(run.record))

    # One line per evaluation, and one per run.
    curve_lines: list[dict[str, Any]] = []
    run_lines: list[dict[str, str]] = []
    for run in runs:
        key_columns = dict(zip(KEY, _key(run.record), strict=True))
        curve_lines += [key_columns | evaluation for evaluation in run.evaluations]
        fields = asdict(run.record)
        # Only runs of custom classes have sources.
        for part in (fields, fields["pretrain"]):
            if part and part["sources"] is None:
                del part["sources"]
        run_lines.append({name: _cell(value) for name, value in fields.items()})
    # A table without lines still has its columns.
    curve_columns = None if curve_lines else [*KEY, "step"]
    curve_table = pd.DataFrame(curve_lines, columns=curve_columns)
    run_table = pd.DataFrame(run_lines)

    study.mkdir(parents=True, exist_ok=True)
    about_path = study / ABOUT
    if not about_path.exists():
        empty = {"form": typed_json.FORM, "command": "", "hardware": "", "notes": [], "readme": []}
        write(about_path, json.dumps(empty, indent=2) + "\n")
    write(study / CONFIGS, _format_configs(runs))
    write(study / CURVES, curve_table.to_csv(index=False))
    write(study / RUNS, run_table.to_csv(index=False))


def _format_configs(runs: list[Published]) -> str:
    """Format configs.jsonl: one line per distinct configuration."""
    configs: dict[str, dict] = {}
    for record, choices, _ in runs:
        key = json.dumps(choices, sort_keys=True)
        config = configs.setdefault(key, {"labels": [], "fingerprints": [], "choices": choices})
        labels = {*config["labels"], record.label}
        config["labels"] = sorted(labels)
        config["fingerprints"].append(record.fingerprint)
    lines = [json.dumps(config) + "\n" for config in configs.values()]
    return "".join(lines)


def _key(record: RunRecord) -> tuple[str, str, int]:
    """The values of the columns ``KEY``."""
    return record.task, record.label, record.seed
