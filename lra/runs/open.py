"""Runs below a folder: the files that training wrote, and the tables of published runs."""

from pathlib import Path
from typing import Any

from ..console import log
from ..disk.search import find_files
from . import config_file, evaluations, record, tables, typed_json
from .folder import RunFolder, Trust
from .record import RunRecord


def finished(folder: Path, trust: Trust = None) -> list[RunFolder]:
    """Open the finished seeds of runs/<study>/<task>/<label>, or the one of a seed's folder.

    Args:
        folder: folder of a label or of a seed.
        trust: see ``RunFolder.open``.

    Raises:
        ValueError: there is no such seed, or ``RunFolder.open`` refuses one.
    """
    seeds = sorted(tables.below(folder))
    if not (seeds or folder.is_dir()):
        raise ValueError(f"run={folder} is not a folder; name one of runs/<study>/<task>/<label>")
    if not seeds:
        seed = any((folder / name).exists() for name in (config_file.NAME, record.NAME))
        places = [folder] if seed else sorted(folder.glob("seed-*"))
        seeds = [place for place in places if (place / record.NAME).exists()]
    runs = [RunFolder.open(place, trust) for place in seeds]
    done = [run for run in runs if run.record.status == "done"]
    if not done:
        reason = "its seeds diverged" if runs else f"no {record.NAME}, python -m lra.train makes them"
        raise ValueError(f"run={folder} has no finished seed: {reason}")
    return done


def scan(root: Path) -> tuple[dict[Path, RunRecord], list[str]]:
    """Read every training record below a folder, and those of published studies if it is theirs.

    Returns:
        The records by their folders, and one message for each that could not be read, each seed without one and each
        link that was skipped (``lra.disk.search``).
    """
    paths, skipped = find_files(root, {record.NAME, config_file.NAME})
    results = [path for path in paths if path.name == record.NAME]
    records, damaged = typed_json.load_all(results, record.load)
    damaged = skipped + damaged
    for folder in (path.parent for path in paths if path.name == config_file.NAME):
        if folder.name.startswith("seed-") and not any(folder.glob("*.json")):
            damaged.append(f"{folder} has no {record.NAME}: the run is not finished")
    for study in tables.studies(root):
        try:
            records |= {path: run.record for path, run in tables.read(study).items()}
        except ValueError as error:
            damaged.append(str(error))
    return records, damaged


def choices(folder: Path) -> dict[str, Any]:
    """Read the flat choices of a run for display; empty for a seed that never had a ``config.yaml``.

    Raises:
        ValueError: the file does not hold the choices of a run.
    """
    if published := tables.find(folder):
        return published.choices
    return config_file.read(folder / config_file.NAME) if _expected(folder, config_file.NAME) else {}


def curves(folder: Path) -> dict[str, dict[int, float]]:
    """Read the evaluations of a run as a curve by step for each column; empty for a seed that never had one.

    Raises:
        ValueError: ``metrics.csv`` is not a table of evaluations.
    """
    rows = []
    if published := tables.find(folder):
        rows = published.evaluations
    elif _expected(folder, evaluations.NAME):
        try:
            rows = evaluations.read(folder)
        except ValueError as error:
            raise ValueError(f"{error}, no curve is drawn of it") from None
    names = {name: None for row in rows for name in row if name != "step"}
    return {name: {row["step"]: row[name] for row in rows if name in row} for name in names}


def _expected(folder: Path, name: str) -> bool:
    """Whether a file is there or the record beside it has its sum, so that its absence is damage."""
    return (folder / name).exists() or typed_json.listed(folder / name)


def history(root: Path) -> list[tuple[RunRecord, dict[str, Any]]]:
    """List the readable records below a folder with the choices of their runs; log the others.

    The choices are for comparison only: they may name anything, and nothing is built from them.
    """
    past, (records, damaged) = [], scan(root)
    for folder, run_record in records.items():
        try:
            past.append((run_record, choices(folder)))
        except ValueError as error:
            damaged.append(str(error))
    for line in damaged:
        log(f"skipped: {line}")
    return past
