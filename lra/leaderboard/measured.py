"""Lines of results that were measured with this suite: published runs and submissions."""

from pathlib import Path
from statistics import mean

from ..console import spread_text
from ..report.arena_entries import entries
from ..results.published import TASKS
from ..results.summary import collect
from ..runs import published as tables
from ..submit import record as submission_record
from ..submit.verify import is_verified
from .lines import LeaderboardLine, Score, Status, group_of

ENCODER = "2 layers, d 64"
# Address of a file of the repository, relative to the page in docs.
ROOT = ".."


def measured_lines(runs: Path, submissions: Path) -> list[LeaderboardLine]:
    """Make the lines of runs at the papers' budget and of submissions.

    Args:
        runs: folder of published studies.
        submissions: folder of submissions.
    """
    lines = own_lines(runs) if runs.is_dir() else []
    for folder in submission_record.folders(submissions):
        lines += submission_lines(folder)
    return lines


def own_lines(runs: Path) -> list[LeaderboardLine]:
    """Make a verified line of each mechanism with runs at the papers' budget in this repository."""
    studies, _ = collect(runs)
    by_name: dict[str, dict[str, list[float]]] = {}
    labels: dict[str, str] = {}
    for task, of_task in entries(studies).items():
        for entry in of_task:
            by_name.setdefault(entry.name, {})[task] = list(entry.row.scores.values())
            labels[entry.name] = entry.row.label
    # Old records have no date; the newest one dates the table.
    dates = [r.date for rows in studies.values() for row in rows for r in row.done if r.date]
    year = int(max(dates)[:4]) if dates else None
    source = ("results of this repository", "results.md#long-range-arena")
    return [
        line_of(name, labels[name], scores, status="verified", source=source, year=year, note="")
        for name, scores in by_name.items()
    ]


def submission_lines(folder: Path) -> list[LeaderboardLine]:
    """Make a line of each mechanism of a submission."""
    submission = submission_record.load(folder)
    status: Status = "verified" if is_verified(folder, submission) else "reported"
    runs = list(tables.read(folder).values())
    dates = [run.record.date for run in runs if run.record.date]
    source = (f"submission {submission.name}", f"{ROOT}/submissions/{submission.name}/{submission_record.NAME}")
    note = f"by {submission.author}; protocol {submission.protocol}, budget {submission.budget}; {submission.hardware}"
    lines = []
    for label in submission.labels:
        # Only tasks of the benchmark have a column.
        scores: dict[str, list[float]] = {}
        for run in runs:
            result = run.record
            if result.label != label or result.task not in TASKS:
                continue
            # A seed that diverged has no score.
            if result.status == "done" and result.test is not None:
                scores.setdefault(result.task, []).append(result.test)
        if scores:
            year = int(max(dates)[:4]) if dates else None
            lines.append(line_of(label, label, scores, status=status, source=source, year=year, note=note))
    return lines


def line_of(
    name: str,
    label: str,
    by_task: dict[str, list[float]],
    *,
    status: Status,
    source: tuple[str, str],
    year: int | None,
    note: str,
) -> LeaderboardLine:
    """Make a line of scores over seeds.

    Args:
        name: name of the line.
        label: label of the runs.
        by_task: test scores of the seeds in percent.
        status, source, year, note: fields of ``LeaderboardLine``.
    """
    scores = {}
    for task in TASKS:
        if task in by_task:
            values = by_task[task]
            text = f"{spread_text(values)} (n = {len(values)})"
            scores[task] = Score(text=text, value=mean(values))
    return LeaderboardLine(
        model=name,
        group=group_of(label, label),
        scores=scores,
        average=None,
        averaged="",
        size=ENCODER,
        year=year,
        protocol="two-layer",
        sources=(source,),
        status=status,
        note=note,
    )
