"""Verification of a submission: its means compared with a rerun by somebody else."""

import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from ..console import log, plural
from ..io import typed_json
from ..results.score_cells import gain_error
from ..runs import config_file
from ..runs.published import CONFIGS, Published
from ..runs.published import read as read_tables
from . import checks, record
from .control import FEWEST_SEEDS, Groups, by_mechanism, is_control, published_reruns
from .record import Comparison, Verification

# A rerun agrees within one point, or within two standard errors of the difference if that is more.
POINTS = 1.0
STANDARD_ERRORS = 2


def compare(folder: Path, reruns: Sequence[Published]) -> list[Comparison]:
    """Compare every mechanism of a submission with its rerun.

    A control without rerun is compared with published runs of the same configuration. If it consists of published runs
    itself, it was trained in this repository, and there is nothing to compare.

    Args:
        folder: submissions/<name>.
        reruns: runs of the rerun.

    Returns:
        One comparison for each task and label; none for a published control without rerun.

    Raises:
        ValueError: runs are missing, are the submitted ones, leave out a seed, are of uncommitted code, or have another
            configuration or source.
    """
    submitted = by_mechanism(read_tables(folder).values())
    rerun_groups = {key: runs for key, runs in by_mechanism(reruns).items() if key in submitted}
    published_groups = {}
    for key, runs in submitted.items():
        if is_control(runs) and key not in rerun_groups:
            published_groups[key] = published_reruns(runs)
    compared = {key: runs for key, runs in submitted.items() if not is_part_of(runs, published_groups.get(key, []))}

    # A rerun is another training of every seed, by committed code.
    check_complete(folder, compared, rerun_groups | published_groups)
    reasons = check_trained_again(submitted, rerun_groups)
    reasons += checks.check_consecutive_seeds(rerun_groups)
    reasons += checks.check_commits([run for runs in rerun_groups.values() for run in runs])
    if reasons:
        raise ValueError("\n  ".join(["the rerun cannot be used:", *reasons]))

    # Compare the means over seeds.
    comparisons = []
    for key, runs in compared.items():
        rerun_runs = rerun_groups.get(key) or published_groups[key]
        check_same_training(folder, runs, rerun_runs)
        comparisons.append(compare_means(runs, rerun_runs))
    return comparisons


def compare_means(runs: Sequence[Published], rerun_runs: Sequence[Published]) -> Comparison:
    """Compare the seeds of a task and label with their rerun. Seeds that diverged are excluded from the means."""
    first = runs[0].record
    scores = finished_scores(runs)
    rerun_scores = finished_scores(rerun_runs)
    num_failed = len(rerun_runs) - len(rerun_scores)
    if num_failed:
        log(f"{first.task} {first.label}: {plural(num_failed, 'seed')} of the rerun diverged, excluded from the mean")
    return Comparison(
        task=first.task,
        label=first.label,
        submitted=mean(scores),
        rerun=mean(rerun_scores),
        n=len(scores),
        rerun_n=len(rerun_scores),
        tolerance=tolerance(scores, rerun_scores),
    )


def check_complete(folder: Path, submitted: Groups, rerun_groups: Groups) -> None:
    """Raise ValueError if mechanisms lack seeds in the rerun, with the commands that train them."""
    missing = []
    for (task, label), runs in submitted.items():
        count = len(finished_scores(rerun_groups.get((task, label), [])))
        if count < FEWEST_SEEDS:
            command = rerun_command(folder, runs[0])
            missing.append(f"{count} finished seeds of {task} {label}, {FEWEST_SEEDS} are needed: {command}")
    if missing:
        raise ValueError("\n  ".join(["the rerun is incomplete:", *missing]))


def check_same_training(folder: Path, runs: Sequence[Published], rerun_runs: Sequence[Published]) -> None:
    """Raise ValueError if a rerun has another configuration or another file of its class than the submitted runs."""
    submitted = runs[0]
    name = f"the rerun of {submitted.record.task} {submitted.record.label}"
    # Devices, threads and folders are not choices, so a rerun on another machine has the same choices.
    for rerun in rerun_runs:
        difference = config_file.difference(submitted.choices, rerun.choices)
        if difference:
            raise ValueError(f"{name} has another configuration ({difference})")
        if rerun.record.sources != submitted.record.sources:
            raise ValueError(f"{name} has another file of its class; export PYTHONPATH={folder} and train again")


def check_trained_again(submitted: Groups, rerun_groups: Groups) -> list[str]:
    """No run of a rerun is a run of the submission itself."""
    reasons = []
    for key, runs in rerun_groups.items():
        identities = {identity(run) for run in submitted[key]}
        seeds = [str(run.record.seed) for run in runs if identity(run) in identities]
        if seeds:
            reasons.append(f"{' '.join(key)} seed {', '.join(seeds)} is the submitted run itself; train it again")
    return reasons


def is_part_of(runs: Sequence[Published], others: Sequence[Published]) -> bool:
    """Whether every run is one of some other runs."""
    return {identity(run) for run in runs} <= {identity(run) for run in others}


def identity(run: Published) -> tuple[str, str | None, float | None]:
    """What distinguishes two trainings: the configuration with the seed, the time of the end, and the score."""
    return run.record.fingerprint, run.record.date, run.record.test


def finished_scores(runs: Sequence[Published]) -> list[float]:
    """Test scores of the finished seeds."""
    scores = []
    for run in runs:
        # A finished seed has a test score.
        if run.record.status == "done" and run.record.test is not None:
            scores.append(run.record.test)
    return scores


def tolerance(scores: Sequence[float], rerun_scores: Sequence[float]) -> float:
    """Largest difference of two means that counts as agreement, in points.

    Args:
        scores, rerun_scores: test scores in percent, of three or more seeds each.
    """
    error = gain_error(scores, rerun_scores) or 0.0
    return max(POINTS, STANDARD_ERRORS * error)


def rerun_command(folder: Path, run: Published) -> str:
    """The command that trains a mechanism of a submission again, or what to train if the run has no command.

    Args:
        folder: submissions/<name>.
        run: a run of the mechanism.
    """
    if run.record.command is None:
        return f"train the configuration of {run.record.label} in {folder / CONFIGS}"
    arguments = shlex.split(run.record.command)
    # Replace the study, the seeds and the paths of the author's files.
    replaced = re.compile(r"\+*(study|seeds|runs|source\.release|source\.archive|pretrain\.from)=")
    options = [argument for argument in arguments if not replaced.match(argument)]
    # A download is identified by its address or its sha256 alone, and the rerun has to download it too.
    identity_keys = {key for key in run.choices if key.startswith("provenance.release")}
    if identity_keys - {"provenance.release.url", "provenance.release.sha256"}:
        options.append("source.release=<your copy of the files>")
    elif any("source.archive=" in argument for argument in arguments):
        options.append("source.archive=<your copy of the file>")
    return shlex.join([*options, f"study=verify-{folder.name}", "seeds=[0,1,2]"])


def write(folder: Path, verification: Verification) -> None:
    """Write ``verified.json``."""
    typed_json.save(verification, folder / record.VERIFIED)


def is_verified(folder: Path) -> bool:
    """Whether a rerun agrees with every mechanism of a submission, as its tables are now."""
    verification = record.load_verification(folder)
    if verification is None:
        return False
    # Each task and label of the tables needs a comparison of its present scores that agrees, or is a published control.
    comparisons = {(item.task, item.label): item for item in verification.comparisons}
    groups = by_mechanism(read_tables(folder).values())
    if not comparisons.keys() <= groups.keys():
        return False
    for key, runs in groups.items():
        if key not in comparisons:
            if is_control(runs) and is_part_of(runs, published_reruns(runs)):
                continue
            return False
        scores = finished_scores(runs)
        item = comparisons[key]
        is_current = item.n == len(scores) and math.isclose(item.submitted, mean(scores))
        if not (is_current and item.agrees):
            return False
    return True
