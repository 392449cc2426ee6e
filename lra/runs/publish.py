"""python -m lra.runs.publish runs=runs/<study>: copy finished runs into runs/published, without their checkpoints."""

from collections import Counter
from pathlib import Path

import safetensors.torch
from omegaconf import DictConfig

from ..config.entry import main
from ..console import log
from ..disk import checksums
from . import checkpoint, config_file, evaluations, record
from .open import Run, open_run, scan

ABOUT = "about.json"  # of a study, written by hand, see docs/numbers.md


@main("publish")
def publish(config: DictConfig) -> None:
    """Copy the runs below a folder and print how many there were.

    Raises:
        ValueError: there is no finished run, one was made by code that is not committed, or another one is published
            in its place. Nothing is copied then.
    """
    records, damaged = scan(Path(config.runs))
    for line in damaged:
        log(f"skipped: {line}")
    if not records:
        raise ValueError(f"there is no finished run below {config.runs}")
    runs = {place(Path(config.out), run): run for run in map(open_run, sorted(records))}
    if len(runs) < len(records):
        raise ValueError(f"two of the runs below {config.runs} have the same study, task, label and seed")
    new = {folder: run for folder, run in runs.items() if not published(folder, run)}
    for folder, run in runs.items():
        wanted = run.record.seed in config.weights
        if folder in new:
            copy(run, folder, weights=wanted)
        elif wanted and not (folder / checkpoint.SAFE).exists():
            copy_weights(run, folder)
    for study, count in Counter(run.record.study for run in runs.values()).items():
        copied = sum(run.record.study == study for run in new.values())
        print(f"{Path(config.out) / study}: {copied} copied, {count - copied} there already")
        if not (about := Path(config.out) / study / ABOUT).exists():
            print(f'write {about}: {{"command": ..., "hardware": ..., "notes": [...], "readme": [tasks]}}')


def place(root: Path, run: Run) -> Path:
    """The folder of a published run."""
    r = run.record
    return root / r.study / r.task / r.label / f"seed-{r.seed}"


def published(folder: Path, run: Run) -> bool:
    """Whether a run is published already.

    Raises:
        ValueError: it must not be: nobody can read the code that made it, or the folder holds another run.
    """
    if (folder / record.NAME).exists():
        if record.load(folder / record.NAME) == run.record:
            return True
        raise ValueError(f"{folder} holds another run than {run.folder}; delete one of them")
    if run.record.git is None or run.record.git.endswith("-dirty"):
        raise ValueError(f"{run.folder} was made by code that is not committed, {run.record.git}")
    return False


def copy(run: Run, folder: Path, *, weights: bool) -> None:
    """Copy the files of a run that are read later, the record last, each with its checksum.

    Args:
        run: finished.
        folder: of the copy.
        weights: those with the best dev score too, as safetensors.

    Raises:
        ValueError: a file of the run cannot be read, or the copy cannot be written.
    """
    curves = evaluations.by_column(run.folder)  # a run may diverge before its first evaluation
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (config_file.NAME, *[evaluations.NAME] * bool(curves)):
            checksums.save(folder / name, checksums.read(run.folder / name).decode())
        if weights:
            copy_weights(run, folder)
        record.save(run.record, folder)
    except OSError as error:
        raise ValueError(f"{folder} cannot be written: {error.strerror}") from None


def copy_weights(run: Run, folder: Path) -> None:
    """Write the weights with the best dev score as safetensors. Raises ValueError if they cannot be read or written."""
    try:
        with checksums.replaced(folder / checkpoint.SAFE) as part:
            part.write_bytes(safetensors.torch.save(checkpoint.read(run.weights)))
    except OSError as error:
        raise ValueError(f"{folder} cannot be written: {error.strerror}") from None


if __name__ == "__main__":
    publish()
