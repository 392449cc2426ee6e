"""python -m lra.runs.publish runs=runs/<study>: add finished runs to the tables in runs/published."""

if __name__ == "__main__":
    from lra.config.manual import begin

    begin("publish")  # before torch is imported

from collections import defaultdict
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from ..config.entry import main
from ..config.options import Options
from ..config.schema import Trust
from ..console import log
from ..io import atomic, lock
from ..options import Whole
from . import checkpoint, published
from .published import Published
from .reader import scan, to_published, unreadable
from .run_dir import RunDir


class PublishOptions(Options):
    conf: ClassVar[str] = "publish"

    runs: Annotated[Path, Field(description="a folder of finished runs: runs=runs/<study>")]
    weights: list[Whole]
    out: Path
    trust: Trust


@main(PublishOptions)
def publish(options: PublishOptions) -> None:
    """Add the runs below a folder to the tables of their studies, and print their number.

    Raises:
        ValueError: there is no finished run, two runs have the same name, a run was made by code that is not committed
            or has damaged files, or another run is published under its name; then nothing is written. Or a study or its
            weights cannot be written; the studies before it may already have been written.
    """
    # 1. Read the runs. Links to folders are followed; what cannot be read is reported.
    records, messages = scan(options.runs)
    for message in messages:
        log(f"skipped: {message}")
    # Publishing the rest without an unreadable seed would put the mean of the other seeds into the tables.
    damaged = unreadable(options.runs, records)
    if damaged:
        raise ValueError(f"{', '.join(map(str, damaged))} cannot be read, see above; nothing was published")
    if not records:
        raise ValueError(f"runs={options.runs} has no finished run; name a folder of finished runs, runs=runs/<study>")
    runs: dict[Path, RunDir] = {}
    for path, result in sorted(records.items()):
        runs[published.run_path(options.out / result.study, result)] = RunDir.read(path, options.trust)
    if len(runs) < len(records):
        remedy = "name a folder with one of them"
        raise ValueError(f"two runs below {options.runs} have the same study, task, label and seed; {remedy}")

    missing = sorted(set(options.weights) - {run.seed for run in runs.values()})
    if missing:
        raise ValueError(f"weights={missing}: {options.runs} has no run with such a seed")

    # 2. Check all runs, study by study, before anything is written.
    studies: dict[Path, dict[Path, RunDir]] = defaultdict(dict)
    for path, run in runs.items():
        study = path.parents[2]
        studies[study][path] = run
    new_runs = {study: _new_runs(study_runs, _published_runs(study)) for study, study_runs in studies.items()}
    for study_runs in studies.values():
        for run in _select_weights(study_runs, options.weights).values():
            checkpoint.read_weights(run.weights)

    # 3. Write the tables, then the weights.
    for study, study_runs in studies.items():
        is_described = (study / published.ABOUT).exists()
        try:
            # Without a new run nothing is written, so the tables may be read-only.
            num_added = _add_to_tables(study, study_runs) if new_runs[study] else 0
            _copy_weights(study_runs, options.weights)
        except OSError as error:
            raise ValueError(f"{study} cannot be written: {error.strerror}") from None
        print(f"{study}: {num_added} added, {len(study_runs) - num_added} already there")
        if not is_described:
            print(f"fill in {study / published.ABOUT}: command, hardware, notes, readme (tasks in the README's table)")


def _new_runs(runs: dict[Path, RunDir], published_runs: dict[Path, Published]) -> list[Published]:
    """Read the runs that are not published yet.

    Args:
        runs: runs of one study by their published paths.
        published_runs: published runs of the study by their paths.

    Raises:
        ValueError: ``check_and_convert`` rejects a run, or another run is published at its path.
    """
    new_runs = []
    for path, run in runs.items():
        published_run = published_runs.get(path)
        if published_run is None:
            new_runs.append(check_and_convert(run))
        elif published_run.record != run.record:
            raise ValueError(f"{path} and {run.path} hold different runs; delete one of them")
    return new_runs


def _add_to_tables(study: Path, runs: dict[Path, RunDir]) -> int:
    """Add the new runs to the tables of a study, and return their number."""
    # Two processes that rewrite the tables at once would lose the runs of one of them, so the second one waits and
    # reads the tables of the first.
    study.mkdir(parents=True, exist_ok=True)
    with lock.hold(study / lock.NAME, lambda owner: log(f"waiting for {owner}, which writes {study}")):
        published_runs = _published_runs(study)
        new_runs = _new_runs(runs, published_runs)
        if new_runs:
            published.save(study, [*published_runs.values(), *new_runs])
    return len(new_runs)


def check_and_convert(run: RunDir) -> Published:
    """Check that a run can be published, and convert it.

    Raises:
        ValueError: it has no record, the code that made it is not committed, or its evaluations cannot be read.
    """
    result = run.record
    if result is None:
        raise ValueError(f"{run.path} is not finished; run the same command again to resume it")
    if result.git is None or result.git.endswith("-dirty"):
        commit = result.git or "unknown commit"
        reason = f"was trained by uncommitted code, or resumed by other code ({commit})"
        raise ValueError(f"{run.path} {reason}; commit the code and train the run again")
    return to_published(run, result)


def _published_runs(study: Path) -> dict[Path, Published]:
    return published.read(study) if (study / published.RUNS).exists() else {}


def _select_weights(runs: dict[Path, RunDir], seeds: list[int]) -> dict[Path, RunDir]:
    """Select the runs of some seeds whose best weights are not at their published paths yet."""
    selected = {}
    for path, run in runs.items():
        # A run that diverged before its first evaluation has no weights.
        has_weights = run.record is not None and run.record.best_step is not None
        if has_weights and run.seed in seeds and not (path / checkpoint.BEST).exists():
            selected[path] = run
    return selected


def _copy_weights(runs: dict[Path, RunDir], seeds: list[int]) -> None:
    """Copy the best weights of some seeds to the paths of their published runs."""
    for path, run in _select_weights(runs, seeds).items():
        path.mkdir(parents=True, exist_ok=True)
        atomic.copy(run.weights, path / checkpoint.BEST, checkpoint.read_weights)


if __name__ == "__main__":
    publish()
