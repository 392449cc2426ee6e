"""Writing and checking the folder of a submission."""

import importlib
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from ..checks.properties import CHECKS
from ..io import atomic, typed_json
from ..runs import checkpoint
from ..runs import published as tables
from ..runs.published import Published
from ..runs.reader import CONTROL, is_expected, scan
from ..runs.record import NAME as RECORD
from ..runs.run_dir import RunDir, Trust
from . import checks, record
from .record import Submission


def read_runs(folder: Path, trust: Trust) -> tuple[list[Published], list[str]]:
    """Read every run below a folder and compare its files with their checksums.

    Args:
        folder: folder of runs.
        trust: modules of custom classes.

    Returns:
        The runs, and the reasons for which others cannot be read.
    """
    records, unreadable = scan(folder)
    runs = []
    reasons = add_remedies(unreadable)
    for path in sorted(records):
        try:
            run = RunDir.read(path, trust)
            check_weights(run)
            published = tables.find(path)
            if published is None:
                # A run may diverge before its first evaluation, and then has no metrics.csv.
                has_curve = is_expected(path, checkpoint.METRICS)
                curve = checkpoint.read_metrics(path) if has_curve else []
                published = Published(records[path], run.choices, curve)
            runs.append(published)
        except ValueError as error:
            reasons.append(str(error))
    return runs, reasons


def add_remedies(messages: Iterable[str]) -> list[str]:
    """Append the remedy to the messages about a missing or unreadable record.json."""
    return [f"{message}; finish, repair or retrain it" if RECORD in message else message for message in messages]


def check_weights(run: RunDir) -> None:
    """Compare the weights of a run with their checksum in the record. Raises ValueError if they differ."""
    if run.weights.exists():
        try:
            typed_json.verify(run.weights)
        except atomic.Unreadable as error:
            raise ValueError(f"{run.weights} is damaged ({error}); copy it again or train the seed again") from None


def write(folder: Path, runs: Sequence[Published], submission: Submission, source: Path | None) -> None:
    """Write the folder of a submission. It replaces an earlier one of the same name, whose verification is removed.

    Args:
        folder: submissions/<name>.
        runs: all runs.
        submission: the statement.
        source: file of a custom class.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Other runs have to be rerun again.
    (folder / record.VERIFIED).unlink(missing_ok=True)
    # Remove the source of the earlier submission, and no other file of the folder. A damaged statement names none.
    with suppress(ValueError):
        earlier = record.load(folder).source
        if earlier and earlier != submission.source:
            (folder / earlier).unlink()
    if source and source.absolute() != (folder / source.name).absolute():
        shutil.copyfile(source, folder / source.name)
    commands = [run.record.command for run in runs if run.record.command]
    command = commands[0] if commands else ""
    about = tables.About(form=typed_json.FORM, command=command, hardware=submission.hardware)
    atomic.write(folder / tables.ABOUT, json.dumps(asdict(about), indent=2) + "\n")
    tables.save(folder, runs)
    # The statement comes last, with the checksums of all other files.
    typed_json.save(submission, folder / record.NAME, record.listed_files(submission))


def labels_of(runs: Sequence[Published]) -> list[str]:
    """Labels of the mechanisms of runs, without the control."""
    return sorted({run.record.label for run in runs} - {CONTROL})


def check_folder(folder: Path) -> list[str]:
    """Check a submission that lies in the repository.

    Args:
        folder: submissions/<name>.

    Returns:
        Reasons for which it cannot be accepted; empty if it can.
    """
    try:
        submission = record.load(folder)
        runs = list(tables.read(folder).values())
        record.load_verification(folder)
    except ValueError as error:
        return [str(error)]
    # What the statement claims has to agree with the tables next to it.
    reasons = []
    if submission.labels != labels_of(runs):
        reasons.append(f"{folder / record.NAME} names {submission.labels}, its runs are of {labels_of(runs)}")
    if submission.checks != len(CHECKS):
        reasons.append(f"{folder} was checked by {submission.checks} checks, now there are {len(CHECKS)}; submit again")
    with importable(folder):
        module = submission.source.removesuffix(".py")
        reasons += checks.refusals(runs, submission, folder, [module] if module else [])
    return reasons


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let the modules of a folder be imported inside the block."""
    sys.path.insert(0, str(folder.absolute()))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder.absolute()))
        # Another submission may have a module of the same name.
        for path in folder.glob("*.py"):
            sys.modules.pop(path.stem, None)
