"""python -m lra.runs.publish runs=runs/<study>: add finished runs to the tables in runs/published."""

from collections import defaultdict
from pathlib import Path
from typing import Annotated, ClassVar

import safetensors.torch
from pydantic import Field

from ..config.entry import main
from ..config.options import Options
from ..console import log
from ..disk import checksums
from ..options import Whole
from . import checkpoint, evaluations, tables
from .open import Run, open_run, scan

ABOUT = "about.json"  # of a study, written by hand, see docs/numbers.md


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
    runs = {tables.place(options.out, run.record): run for run in map(open_run, sorted(records))}
    if len(runs) < len(records):
        raise ValueError(f"two of the runs below {options.runs} have the same study, task, label and seed")
    by_study: dict[Path, dict[Path, Run]] = defaultdict(dict)
    for path, run in runs.items():
        by_study[path.parents[2]][path] = run
    before = {study: tables.read(study) if tables.studies(study) else {} for study in by_study}
    new = {path: contents(run) for path, run in runs.items() if not published(path, run, before[path.parents[2]])}
    for study, some in by_study.items():
        added = {path: new[path] for path in some if path in new}
        try:
            if added:
                tables.save(study, [*before[study].values(), *added.values()])
            for path, run in some.items():
                if run.record.seed in options.weights and not (path / checkpoint.SAFE).exists():
                    copy_weights(run, path)
        except OSError as error:
            raise ValueError(f"{study} cannot be written: {error.strerror}") from None
        print(f"{study}: {len(added)} added, {len(some) - len(added)} there already")
        if not (about := study / ABOUT).exists():
            print(f'write {about}: {{"command": ..., "hardware": ..., "notes": [...], "readme": [tasks]}}')


def published(path: Path, run: Run, there: dict[Path, tables.Published]) -> bool:
    """Whether a run is in the tables already.

    Args:
        path: place of the run.
        run: finished run.
        there: runs in the tables.

    Raises:
        ValueError: it must not be: nobody can read the code that made it, or another run is in its place.
    """
    if path in there:
        if there[path].record == run.record:
            return True
        raise ValueError(f"{path} is another run than {run.folder}; delete one of them")
    if run.record.git is None or run.record.git.endswith("-dirty"):
        raise ValueError(f"{run.folder} was made by code that is not committed, {run.record.git}")
    return False


def contents(run: Run) -> tables.Published:
    """What the tables hold of a finished run. Raises ValueError if its evaluations cannot be read."""
    evaluated = run.published or checksums.expected(run.folder / evaluations.NAME)  # a run may diverge before the first
    return tables.Published(run.record, run.choices, run.evaluations() if evaluated else [])


def copy_weights(run: Run, folder: Path) -> None:
    """Write the weights with the best dev score as safetensors. Raises ValueError if they cannot be read."""
    weights = checkpoint.weights(run.weights)
    folder.mkdir(parents=True, exist_ok=True)
    with checksums.replaced(folder / checkpoint.SAFE) as part:
        part.write_bytes(safetensors.torch.save(weights))


if __name__ == "__main__":
    publish()
