"""python -m lra.runs.publish runs=runs/<study>: add finished runs to the tables in runs/published."""

if __name__ == "__main__":
    from lra.startup import begin

    begin()  # before torch is imported

from collections import defaultdict
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from ..config.entry import main
from ..config.options import Options
from ..console import log
from ..disk import atomic
from ..options import Whole
from . import checkpoint, evaluations, tables
from .folder import RunFolder
from .open import scan


class PublishOptions(Options):
    conf: ClassVar[str] = "publish"

    runs: Annotated[Path, Field(description="a folder of finished runs: runs=runs/<study>")]
    weights: list[Whole]
    out: Path


@main(PublishOptions)
def publish(options: PublishOptions) -> None:
    """Add the runs below a folder to the tables of their studies and print how many there were.

    Raises:
        ValueError: there is no finished run, one was made by code that is not committed, or another one is published
            in its place. Nothing is written then.
    """
    records, damaged = scan(options.runs)
    for line in damaged:
        log(f"skipped: {line}")
    if not records:
        raise ValueError(f"there is no finished run below {options.runs}")
    runs = {tables.place(options.out, run.record): run for run in map(RunFolder.open, sorted(records))}
    if len(runs) < len(records):
        raise ValueError(f"two of the runs below {options.runs} have the same study, task, label and seed")
    studies = dict.fromkeys(path.parents[2] for path in runs)
    before = {study: tables.read(study) if (study / tables.RUNS).exists() else {} for study in studies}
    new: dict[Path, list[tables.Published]] = defaultdict(list)
    for path, run in runs.items():
        there = before[path.parents[2]].get(path)
        if there and there.record != run.record:
            raise ValueError(f"{path} is another run than {run.path}; delete one of them")
        if not there:
            new[path.parents[2]].append(contents(run))
    for study in studies:
        some = {path: run for path, run in runs.items() if study in path.parents}
        described = (study / tables.ABOUT).exists()
        try:
            if new[study]:
                tables.save(study, [*before[study].values(), *new[study]])
            for path, run in some.items():
                if run.seed in options.weights and not (path / checkpoint.BEST).exists():
                    checkpoint.weights(run.weights)  # read before the folder is made
                    path.mkdir(parents=True, exist_ok=True)
                    atomic.copy(run.weights, path / checkpoint.BEST, checkpoint.weights)
        except OSError as error:
            raise ValueError(f"{study} cannot be written: {error.strerror}") from None
        print(f"{study}: {len(new[study])} added, {len(some) - len(new[study])} there already")
        if not described:
            print(f"fill in {study / tables.ABOUT}: command, hardware, notes, readme (tasks in the README's table)")


def contents(run: RunFolder) -> tables.Published:
    """Read a finished run. Raises ValueError if nobody can read the code that made it, or its evaluations."""
    if run.record.git is None or run.record.git.endswith("-dirty"):
        raise ValueError(f"{run.path} was made by code that is not committed, {run.record.git}")
    evaluated = (run.path / evaluations.NAME).exists()  # a run may diverge before the first
    rows = evaluations.read(run.path) if evaluated else []
    return tables.find(run.path) or tables.Published(run.record, run.choices, rows)


if __name__ == "__main__":
    publish()
