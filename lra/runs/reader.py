"""Read runs below a folder: the files that training wrote, and the tables of published runs."""

import contextlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from ..console import log, spread_text
from ..io import lock, typed_json
from ..io.typed_json import find_files
from . import checkpoint, config_file, published, record
from .config_file import TrustedModules
from .record import RunRecord
from .run_dir import RunDir, has_begun

# Label of the control: the mechanism without attention, where every query gets the mean of the values.
CONTROL = "mean"
# Learning rate in a label.
RATE = re.compile(r"-optim\.lr=(\d[\d.]*(?:e-?\d+)?)")


@dataclass(frozen=True)
class SeedDirs:
    """The run directories of the seeds of one configuration.

    Args:
        home: ``runs/<study>/<task>/<label>``, with a folder ``seed-<k>`` for each seed.
    """

    home: Path

    def path(self, seed: int) -> Path:
        """The run directory of a seed."""
        return self.home / f"seed-{seed}"

    def count_without_record(self, seeds: Iterable[int]) -> int:
        """Count the seeds without a record."""
        paths = [self.path(seed) / record.NAME for seed in seeds]
        return sum(not path.exists() for path in paths)

    def saved_padding(self) -> str | None:
        """The padding, ``batch`` or ``compact``, of the first seed that has begun or is open; None if none has."""
        for path in sorted(self.home.glob(f"seed-*/{config_file.NAME}")):
            # A run that was killed before its first evaluation does not count; a run that is open does.
            is_open = lock.holder(path.parent / lock.NAME) is not None
            if not (has_begun(path.parent) or is_open):
                continue
            # A configuration that cannot be read is reported when its seed is run.
            with contextlib.suppress(ValueError):
                padding = config_file.read(path).get("data.pad")
                if padding in ("batch", "compact"):
                    return padding
        return None

    def check_custom_code(self, choices: dict[str, Any]) -> None:
        """Check that the seeds with a record were trained with the present files of custom classes.

        Raises:
            ValueError: a file has changed since.
        """
        remedy = "seeds are averaged: start a new study with study=<name> or delete that folder"
        for folder, result in self._records().items():
            config_file.check_custom_code(folder, choices, result.sources, remedy=remedy)

    def _records(self) -> dict[Path, RunRecord]:
        """Read the records of the seeds by run directory, without those that cannot be read."""
        paths = sorted(self.home.glob(f"seed-*/{record.NAME}"))
        records, _ = typed_json.load_all(paths, record.load)
        return records

    def _finished_records(self) -> list[RunRecord]:
        """The records of the seeds that did not diverge."""
        return [result for result in self._records().values() if result.status == "done"]

    def summary(self) -> str | None:
        """Describe the finished seeds: mean, sample standard deviation, number, and the gain over the control.

        The control is the label ``mean`` next to this one, at the learning rate that this label names, if it has a
        finished seed of the same protocol and budget.

        Returns:
            "listops cur_abs: test 35.60 ± 0.14 (n = 5), +17.60 over mean (n = 5)"; None without a finished seed.
        """
        done = self._finished_records()
        if not done:
            return None
        first = done[0]
        scores = _test_scores(done)
        text = f"{first.task} {first.label}: test {spread_text(scores)} (n = {len(scores)})"
        # A label with a learning rate is compared with the control at this rate.
        rate = RATE.search(first.label)
        control = f"{CONTROL}{rate[0]}" if rate else CONTROL
        if first.label == control:
            return text

        # The control counts only if it was trained with the same protocol and budget.
        settings = (first.protocol, first.budget)
        controls = SeedDirs(self.home.parent / control)._finished_records()
        control_scores = _test_scores(result for result in controls if (result.protocol, result.budget) == settings)
        if control_scores:
            gain = mean(scores) - mean(control_scores)
            text += f", {gain:+.2f} over {control} (n = {len(control_scores)})"
        return text


def _test_scores(records: Iterable[RunRecord]) -> list[float]:
    return [result.test for result in records if result.test is not None]


def finished(folder: Path, trust: TrustedModules = None) -> list[RunDir]:
    """Read the finished seeds of a label, or the one of a run directory.

    Args:
        folder: ``runs/<study>/<task>/<label>``, or a run directory.
        trust: modules that a configuration may name, see ``RunDir.read``.

    Raises:
        ValueError: there is no such seed, or ``RunDir.read`` rejects one.
    """
    # Published runs, or else run directories.
    seed_dirs = sorted(published.below(folder))
    if not (seed_dirs or folder.is_dir()):
        raise ValueError(f"run={folder} is not a folder; name one of runs/<study>/<task>/<label>")
    if not seed_dirs:
        is_seed = any((folder / name).exists() for name in (config_file.NAME, record.NAME))
        candidates = [folder] if is_seed else sorted(folder.glob("seed-*"))
        seed_dirs = [path for path in candidates if (path / record.NAME).exists()]
    runs = [RunDir.read(path, trust) for path in seed_dirs]
    done = [run for run in runs if run.record and run.record.status == "done"]
    if not done:
        reason = "its seeds diverged" if runs else f"no {record.NAME}; train its seeds with lra train"
        raise ValueError(f"run={folder} has no finished seed: {reason}")
    return done


def scan(root: Path, *, reports_unfinished: bool = True) -> tuple[dict[Path, RunRecord], list[str]]:
    """Read every training record below a folder, and the published runs of studies with tables.

    A study with tables is the folder itself or a folder in it. Links to folders are followed
    (``typed_json.find_files``).

    Args:
        root: the folder.
        reports_unfinished: whether seeds without a result get a message.

    Returns:
        The records by run directory, and one message for each broken link, each folder, record or table that could
        not be read and each seed without a result.
    """
    paths, messages = find_files(root, {record.NAME, config_file.NAME})

    # Records, and configurations of seeds that have none yet.
    record_paths = [path for path in paths if path.name == record.NAME]
    records, errors = typed_json.load_all(record_paths, record.load)
    messages += errors
    for path in paths:
        seed_dir = path.parent
        is_config = path.name == config_file.NAME and seed_dir.name.startswith("seed-")
        # ``lra study transfer`` writes config.yaml too, with a result of another name.
        has_result = any(file.name != record.FRESH_TEST_NAME for file in seed_dir.glob("*.json"))
        if reports_unfinished and is_config and not has_result:
            messages.append(f"{seed_dir} has no {record.NAME}: the run is not finished")

    # Tables of published studies.
    for study in published.studies(root):
        try:
            runs = published.read(study)
        except ValueError as error:
            messages.append(str(error))
            continue
        for path, run in runs.items():
            records[path] = run.record
    return records, messages


def unreadable(root: Path, records: Mapping[Path, RunRecord]) -> list[Path]:
    """List the files of records below a folder that ``scan`` could not read.

    Args:
        root: the folder.
        records: records that ``scan`` found.
    """
    paths, _ = find_files(root, {record.NAME})
    missing = [path for path in paths if path.parent not in records]
    # The record of a run that has ended since the scan can be read.
    later_records, _ = typed_json.load_all(missing, record.load)
    return [path for path in missing if path.parent not in later_records]


def read_choices(seed_dir: Path) -> dict[str, Any]:
    """Read the flat choices of a run for display; empty for a seed that never had a ``config.yaml``.

    Raises:
        ValueError: the file does not hold the choices of a run.
    """
    published_run = published.find(seed_dir)
    if published_run:
        return published_run.choices
    if not is_expected(seed_dir, config_file.NAME):
        return {}
    return config_file.read(seed_dir / config_file.NAME)


def differing_choices(seed_dirs: Iterable[Path]) -> list[str]:
    """Name the options in which the seeds of a label differ, as a remark; no remark if they agree.

    Training refuses such seeds, so they come from folders that were merged, or from an earlier version.
    """
    # Seeds with equal choices have equal files. Published seeds have no files, so each of them is compared.
    folder_of: dict[Path | bytes, Path] = {}
    keys = set()
    with contextlib.suppress(ValueError):
        for seed_dir in seed_dirs:
            path = seed_dir / config_file.NAME
            if published.find(seed_dir):
                folder_of[seed_dir] = seed_dir
            elif path.is_file():
                folder_of[path.read_bytes()] = seed_dir
        all_choices = [read_choices(seed_dir) for seed_dir in folder_of.values()]
        for choices in all_choices[1:]:
            keys |= config_file.differing_keys(all_choices[0], choices)
    return [f"seeds differ in {', '.join(sorted(keys))}"] if keys else []


def to_published(run: RunDir, result: RunRecord) -> published.Published:
    """Convert a finished run to the form of a published one."""
    published_run = published.find(run.path)
    if published_run:
        return published_run
    # A run may diverge before its first evaluation, and then has no metrics.csv.
    has_evaluations = is_expected(run.path, checkpoint.METRICS)
    evaluations = checkpoint.read_metrics(run.path) if has_evaluations else []
    return published.Published(result, run.choices, evaluations)


def read_curves(seed_dir: Path) -> dict[str, dict[int, float]]:
    """Read the evaluations of a run as a curve by step for each column; empty if the seed was never evaluated.

    Raises:
        ValueError: ``metrics.csv`` is not a table of evaluations.
    """
    # Evaluations by line, from the tables of a published study or from metrics.csv.
    evaluations = []
    published_run = published.find(seed_dir)
    if published_run:
        evaluations = published_run.evaluations
    elif is_expected(seed_dir, checkpoint.METRICS):
        try:
            evaluations = checkpoint.read_metrics(seed_dir)
        except ValueError as error:
            raise ValueError(f"{error}; its curve is not drawn") from None
    # Curves by column.
    columns: dict[str, dict[int, float]] = {}
    for evaluation in evaluations:
        step = int(evaluation["step"])
        for name, value in evaluation.items():
            # NaN and infinity cannot be drawn.
            if name != "step" and math.isfinite(value):
                curve = columns.setdefault(name, {})
                curve[step] = value
    return columns


def is_expected(seed_dir: Path, name: str) -> bool:
    """Whether a file exists, or is missing although the record next to it holds its checksum."""
    path = seed_dir / name
    return path.exists() or typed_json.recorded_digest(path) is not None


def warn_of_missing_files(seed_dir: Path) -> None:
    """Log the files that the record of a finished run lists and that are missing; the run is still skipped."""
    with contextlib.suppress(ValueError):
        paths = [seed_dir / name for name in record.FILES]
        missing = [path.name for path in paths if not path.exists() and typed_json.recorded_digest(path)]
        if missing:
            log(f"{seed_dir}: finished, but without {', '.join(missing)}; delete the folder to run that seed again")


def history(root: Path) -> list[tuple[RunRecord, dict[str, Any]]]:
    """List the readable records below a folder with the choices of their runs; log the unreadable ones.

    The choices are for comparison only: they may name anything, and nothing is built from them.
    """
    # Leave out unfinished seeds: the sweep that calls this may be about to resume them.
    records, messages = scan(root, reports_unfinished=False)
    past_runs = []
    for seed_dir, result in records.items():
        try:
            past_runs.append((result, read_choices(seed_dir)))
        except ValueError as error:
            messages.append(str(error))
    for message in messages:
        log(f"skipped: {message}")
    return past_runs
