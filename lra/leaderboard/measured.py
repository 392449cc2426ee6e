"""Lines of results that were measured with this suite: published runs and submissions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

from ..console import log, spread_text
from ..report.arena_entries import TWO_LAYERS, encoder_of, entries, seeds_text
from ..results.paper_values import TASKS, Protocol
from ..results.summary import collect
from ..results.table import in_markdown
from ..runs import published
from ..runs.reader import read_choices
from ..submit import record as submission_record
from ..submit.control import is_control
from ..submit.verify import is_verified
from .lines import LeaderboardLine, Score, Status, group_of, mechanism_of

# The repository, relative to the page in docs.
ROOT = ".."
# Remark on a task whose data are not the official files.
OTHER_FILES = "on files other than the official ones"


@dataclass
class TaskScores:
    """The finished seeds of a mechanism on a task.

    Args:
        task: name of the task.
        label: label of the runs.
        choices: flat choices of the first seed.
        scores: test scores in percent.
        num_failed: number of seeds without a score.
        num_collapsed: number of finished seeds that give every example the same answer.
    """

    task: str
    label: str
    choices: Mapping[str, Any]
    scores: list[float]
    num_failed: int = 0
    num_collapsed: int = 0

    @property
    def text(self) -> str:
        """The score as it is shown: 36.02 ± 0.31 (n = 4 (+1), collapsed 1/4)."""
        num_seeds = len(self.scores)
        seeds = f"n = {seeds_text(num_seeds, self.num_failed)}"
        if self.num_collapsed:
            seeds += f", collapsed {self.num_collapsed}/{num_seeds}"
        return f"{spread_text(self.scores)} ({seeds})"


def measured_lines(runs: Path, submissions: Path, *, strict: bool = True) -> list[LeaderboardLine]:
    """Make the lines of runs at the papers' budget and of submissions.

    Args:
        runs: folder of published studies.
        submissions: folder of submissions.
        strict: whether a damaged submission is an error; else it is logged and left out.

    Raises:
        ValueError: strict is true and a submission is damaged.
    """
    lines = own_lines(runs) if runs.is_dir() else []
    for folder in submission_record.folders(submissions):
        try:
            lines += submission_lines(folder)
        except ValueError as error:
            if strict:
                raise
            log(f"{folder} is left out of the leaderboard: {error}")
    return lines


def own_lines(runs: Path) -> list[LeaderboardLine]:
    """Make the verified lines of the published runs at the papers' budget.

    Args:
        runs: folder of published studies.
    """
    studies, _ = collect(runs)
    # One line for each name and class of protocol.
    scores_by_line: dict[tuple[str, Protocol], list[TaskScores]] = {}
    notes: dict[tuple[str, Protocol], list[str]] = {}
    for entry in chain.from_iterable(entries(studies).values()):
        # All seeds of a row have the same settings.
        choices = read_choices(next(iter(entry.row.runs)))
        task_scores = TaskScores(
            task=entry.row.task,
            label=entry.row.label,
            choices=choices,
            scores=list(entry.row.scores.values()),
            num_failed=entry.row.num_failed,
            num_collapsed=len(entry.row.collapsed),
        )
        protocol = protocol_of(choices)
        # The name of an entry has the size of a larger encoder, which differs between tasks; the label does not.
        name = entry.name if protocol == "two-layer" else entry.row.label
        # A line has one score per task: two encoders of one label on a task are two lines.
        if any(other.task == task_scores.task for other in scores_by_line.get((name, protocol), [])):
            name = entry.name
        scores_by_line.setdefault((name, protocol), []).append(task_scores)
        line_notes = notes.setdefault((name, protocol), [])
        if entry.row.facts["data"]:
            line_notes.append(f"{task_scores.task} {OTHER_FILES}")
    # Every line has the year of the newest record. Old records have no date.
    all_rows = chain.from_iterable(studies.values())
    dates = [result.date for row in all_rows for result in row.done if result.date]
    source = ("results of this repository", "results.md#long-range-arena")
    lines = []
    for key, line_scores in scores_by_line.items():
        name, _ = key
        note = "; ".join(notes[key])
        line = line_of(name, line_scores, status="verified", source=source, year=year_of(dates), note=note)
        lines.append(line)
    return lines


def submission_lines(folder: Path) -> list[LeaderboardLine]:
    """Make a line of each mechanism of a submission and each class of protocol."""
    submission = submission_record.load(folder)
    status: Status = "verified" if is_verified(folder) else "reported"
    runs = list(published.read(folder).values())
    dates = [run.record.date for run in runs if run.record.date]
    source = (f"submission {submission.name}", f"{ROOT}/submissions/{submission.name}/{submission_record.NAME}")
    about = f"by {escaped(submission.author)}; protocol {submission.protocol}; {escaped(submission.hardware)}"
    if submission_record.LINK_PATTERN.fullmatch(submission.link):
        about += f"; [{escaped(submission.link)}]({submission.link})"
    lines = []
    for label in submission.labels:
        # Only tasks of the benchmark have a column.
        label_runs = [run for run in runs if run.record.label == label and run.record.task in TASKS]
        by_task = scores_by_task(label, label_runs)
        # The last run of a task gives its remark.
        remarks: dict[str, str] = {}
        for run in label_runs:
            task = run.record.task
            training = f"{run.choices['optim.steps']:,} steps of {run.choices['optim.batch']:,} examples"
            remarks[task] = f"{task} {training}, {run.record.params:,} parameters"
            if run.record.data:
                remarks[task] += f" {OTHER_FILES}"
        compared_runs = [run for run in runs if run.record.label == label or is_control([run])]
        commits = sorted({run.record.git or "unknown" for run in compared_runs})

        # One line for each class of protocol.
        by_protocol: dict[Protocol, list[TaskScores]] = {}
        for task_scores in by_task.values():
            by_protocol.setdefault(protocol_of(task_scores.choices), []).append(task_scores)
        for line_scores in by_protocol.values():
            texts = [about, *(remarks[task_scores.task] for task_scores in line_scores)]
            if "unknown" in commits:
                texts.append("code of an unknown commit")
            if len(commits) > 1:
                texts.append(f"seeds and control of several commits: {', '.join(commits)}")
            note = "; ".join(texts)
            lines.append(line_of(label, line_scores, status=status, source=source, year=year_of(dates), note=note))
    return lines


def scores_by_task(label: str, runs: Sequence[published.Published]) -> dict[str, TaskScores]:
    """Collect the seeds of a label by task, failed ones included."""
    by_task: dict[str, TaskScores] = {}
    for run in runs:
        result = run.record
        task_scores = by_task.setdefault(result.task, TaskScores(result.task, label, run.choices, []))
        # A seed that diverged has no score.
        if result.status == "done" and result.test is not None:
            task_scores.scores.append(result.test)
            task_scores.num_collapsed += bool(result.collapsed)
        else:
            task_scores.num_failed += 1
    return by_task


def escaped(text: str) -> str:
    """Escape the free text of a submission for the page: line ends, bars, Markdown and HTML."""
    return in_markdown(" ".join(text.split())).replace("|", "\\|")


def protocol_of(choices: Mapping[str, Any]) -> Protocol:
    """Class of the protocol of a run at the papers' budget, from its flat choices."""
    if choices.get("pretrain.objective", "none") != "none":
        return "pretrained"
    if encoder_of(choices) == TWO_LAYERS:
        return "two-layer"
    # PSF-Attn trains a single block. Every other encoder counts as s4-sized, although a few recipes have 2 or 3 layers.
    return "other" if choices["model.layers"] == 1 else "s4-sized"


def year_of(dates: Sequence[str]) -> int | None:
    """Year of the newest ISO date; None without any."""
    return int(max(dates)[:4]) if dates else None


def line_of(
    name: str,
    line_scores: Sequence[TaskScores],
    *,
    status: Status,
    source: tuple[str, str],
    year: int | None,
    note: str,
) -> LeaderboardLine:
    """Make a line of the results of one mechanism on several tasks.

    Args:
        name: name of the line.
        line_scores: results with one class of protocol.
        status, source, year, note: fields of ``LeaderboardLine``.
    """
    scores = {}
    for task_scores in line_scores:
        if task_scores.scores:
            scores[task_scores.task] = Score(text=task_scores.text, value=mean(task_scores.scores))
    first = line_scores[0]
    sizes = dict.fromkeys(encoder_of(task_scores.choices) for task_scores in line_scores)
    return LeaderboardLine(
        model=name,
        group=group_of(first.label, first.label),
        scores={task: scores[task] for task in TASKS if task in scores},
        average=None,
        averaged="",
        size=" / ".join(sizes),
        year=year,
        protocol=protocol_of(first.choices),
        sources=(source,),
        status=status,
        note=note,
        names=(mechanism_of(first.label),),
    )
