"""Writing and checking the folder of a submission."""

import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from ..checks.__main__ import applicable_checks, failed_checks
from ..checks.properties import CHECKS
from ..config import CONF
from ..config.errors import prefixed
from ..evaluate.restore import restore_experiment
from ..io import atomic, typed_json
from ..runs import published as tables
from ..runs.config_file import TrustedModules, check_trust
from ..runs.published import Published
from ..runs.reader import scan, to_published
from ..runs.record import NAME as RECORD
from ..runs.run_dir import RunDir
from . import checks, record
from .control import Groups, by_mechanism, check_control, labels_of
from .record import Submission


def read_runs(folder: Path, trust: TrustedModules) -> tuple[list[Published], list[str]]:
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
            check_unedited(path)
            check_weights(run)
            runs.append(to_published(run, records[path]))
        except ValueError as error:
            reasons.append(str(error))
    return runs, reasons


def add_remedies(messages: Iterable[str]) -> list[str]:
    """Append the remedy to the messages about a missing or unreadable record.json."""
    return [f"{message}; finish, repair or retrain it" if RECORD in message else message for message in messages]


def check_unedited(path: Path) -> None:
    """Raise ValueError if a record.json lacks its checksum, which somebody who edits it by hand has to delete.

    Tables have no checksums, so only tables of the repository count.
    """
    if tables.find(path) and not path.resolve().is_relative_to(tables.HOME.resolve()):
        raise ValueError(f"{path} is a row of a table without checksum; name the folder of the run directories")
    file = path / RECORD
    if file.is_file():
        record.check_sealed(file, "restore the file or train the seed again")


def check_weights(run: RunDir) -> None:
    """Raise ValueError if the weights of a run differ from their checksum in the record; they may be missing."""
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
    # A verification is about the earlier runs.
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


def check_author(folder: Path, author: str) -> list[str]:
    """A submission that a folder holds already is by the same author, since nobody else may replace it."""
    # A missing or damaged statement names no author.
    earlier = author
    with suppress(ValueError):
        earlier = typed_json.parse(Submission, folder / record.NAME, "a statement", "submit again").author
    is_same = record.is_same_author(earlier, author)
    return [] if is_same else [f"{folder} is a submission by {earlier}; choose another name="]


def check_submission(
    runs: Sequence[Published], submission: Submission, folder: Path, trust: TrustedModules = None
) -> list[str]:
    """Run all checks of a submission, and list every reason for which it cannot be accepted.

    Args:
        runs: all runs of the submission.
        submission: its statement.
        folder: folder that holds the source of a custom class.
        trust: modules of custom classes.
    """
    # Checks of the records, which need no model.
    groups = by_mechanism(runs)
    reasons = []
    reasons += checks.check_seeds(groups)
    reasons += checks.check_consecutive_seeds(groups)
    reasons += checks.check_one_configuration(groups)
    reasons += checks.check_finished(groups)
    reasons += check_control(groups, submission.rates)
    reasons += checks.check_names(groups) + checks.check_commands(groups)
    reasons += checks.check_statement(runs, submission)
    reasons += checks.check_benchmark(groups)
    reasons += checks.check_rates(groups, submission.rates)
    reasons += checks.check_commits(runs)
    source_reasons = check_source(groups, submission.source, folder)
    reasons += source_reasons
    if not source_reasons:
        # Without the source of its class a mechanism is not built.
        reasons += check_mechanisms(groups, folder, trust)
    return reasons


def check_source(groups: Groups, source: str, folder: Path) -> list[str]:
    """The source of every custom class is attached, is the file of the training, and needs no other file."""
    reasons = []
    # One file per submission; its name is the name of the module.
    for target in checks.custom_targets(groups):
        module, _, name = target.rpartition(".")
        file = folder / f"{module}.py"
        if "." in module:
            reasons.append(f"{target} is in a package; move the class to one file, a top-level module, and train again")
        elif source != file.name or not file.is_file():
            reasons.append(f"the source of {target} is not attached; add source={file.name}")
        elif f"class {name}" not in file.read_text(encoding="utf-8"):
            reasons.append(f"{file.name} does not define {name}; attach the file with class {name}")
        else:
            reasons += changed_source(groups, target, file)
            error = import_alone(file, name)
            if error:
                reasons.append(f"{file.name} cannot be imported without other files ({error}); put all code in it")
    return reasons


def changed_source(groups: Groups, target: str, file: Path) -> list[str]:
    """The file of a custom class is the one that its runs were trained with."""
    with prefixed(str(file)):
        digest = atomic.digest(file)
    changed = []
    for (task, label), runs in groups.items():
        # Runs of an old version did not record their source, so they have to be trained again.
        has_class = target in checks.custom_targets({(task, label): runs})
        digests = {(run.record.sources or {}).get(file.stem) for run in runs}
        if has_class and digests != {digest}:
            changed.append(f"{task} {label}")
    remedy = "attach the file of the training or train again"
    return [f"{', '.join(changed)} was not trained with this {file.name}; {remedy}"] if changed else []


def import_alone(file: Path, name: str) -> str:
    """Import a custom class in a process that sees only its file and the suite; return the error, or ""."""
    root = str(CONF.parent)
    # The suite is imported first, since its folder may hold files of the user too.
    code = f"""
import os, sys
sys.path.insert(0, {root!r})
import data_prep, lra.attention.base
sys.path[:] = [path for path in sys.path if os.path.realpath(path) != {os.path.realpath(root)!r}]
from {file.stem} import {name}
"""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(file, folder)
        command = [sys.executable, "-c", code]
        result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if not result.returncode:
        return ""
    # A module may end the process without a message.
    lines = result.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit status {result.returncode}"


def check_mechanisms(groups: Groups, folder: Path, trust: TrustedModules = None) -> list[str]:
    """Every mechanism has the parameters of its records and passes the checks of all mechanisms on 128 tokens.

    Args:
        groups: runs by task and label.
        folder: folder that holds the source of a custom class.
        trust: modules of custom classes.
    """
    reasons = []
    checked = set()
    for (task, label), runs in groups.items():
        # The run may be a row of a table without a run directory. The path is a placeholder for messages: only the
        # configuration of the run is used.
        path = folder.absolute() / "study" / task / label / f"seed-{runs[0].record.seed}"
        run = RunDir(path=path, choices=runs[0].choices, seed=runs[0].record.seed, record=runs[0].record)
        # The checks depend on these options only, which a label may change from task to task.
        prefixes = ("attn.", "block.", "model.heads")
        options = {key: str(value) for key, value in runs[0].choices.items() if key.startswith(prefixes)}
        identity = (label, *sorted(options.items()))
        try:
            check_trust(run.choices, path, trust)
            experiment = restore_experiment(run, "data")
            params = sum(parameter.numel() for parameter in experiment.meta_model.parameters())
            failed = [] if identity in checked else failed_checks(experiment)
        except (ValueError, ImportError) as error:
            reasons.append(f"{task} {label} cannot be built: {error}")
            continue
        checked.add(identity)
        wrong_counts = sorted({run.record.params for run in runs} - {params})
        if wrong_counts:
            counts = ", ".join(f"{count:,}" for count in wrong_counts)
            reasons.append(f"{task} {label} has {params:,} parameters, its records have {counts}; train it again")
        if failed:
            num_checks = len(applicable_checks(experiment))
            reasons.append(f"{label} fails {len(failed)} of {num_checks} checks: {', '.join(failed)}")
    return reasons


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
        verification = record.load_verification(folder)
    except ValueError as error:
        return [str(error)]
    # What the statement claims has to agree with the tables next to it.
    reasons = []
    if submission.name != folder.name:
        reasons.append(f"{folder / record.NAME} is of name={submission.name}; move it to a folder of this name")
    if verification and record.is_same_author(verification.author, submission.author):
        reasons.append(f"{folder / record.VERIFIED} is by the submission's author; somebody else has to rerun it")
    if submission.labels != labels_of(runs):
        reasons.append(f"{folder / record.NAME} names {submission.labels}, its runs are of {labels_of(runs)}")
    if submission.checks != len(CHECKS):
        reasons.append(f"{folder} was checked by {submission.checks} checks, now there are {len(CHECKS)}; submit again")
    module = submission.source.removesuffix(".py")
    with importable(folder, module):
        reasons += check_submission(runs, submission, folder, [module] if module else [])
    return reasons


@contextmanager
def importable(folder: Path, module: str) -> Iterator[None]:
    """Import from a folder inside the block; its ``module`` ("": none) replaces a loaded module of the same name."""
    loaded = sys.modules.pop(module, None)
    sys.path.insert(0, str(folder.absolute()))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder.absolute()))
        sys.modules.pop(module, None)
        if loaded:
            sys.modules[module] = loaded
