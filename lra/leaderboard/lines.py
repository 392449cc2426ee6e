"""Lines of the leaderboard: one model of one source, with its scores on the six tasks."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import mean
from typing import Literal, get_args

from ..results import paper_values
from ..results.paper_values import TASKS, PrintedValue, Protocol, training_of

# The most reliable status first. verified: run here, or a submission that a rerun confirmed. reported: any other
# submission. quoted: printed in a paper. digest: printed in a paper, read in a summary. recalled: not read.
Status = Literal["verified", "reported", "quoted", "digest", "recalled"]
STATUSES = get_args(Status)
FIVE = TASKS[:5]
AVERAGE = "average"
# Largest difference between a printed average and the mean of its tasks: half a unit of the first decimal and a margin.
ROUNDING = 0.06
# Spellings of one model in several papers.
ALIASES = {
    "nyströmformer": "nystromformer",
    "full attention": "softmax",
    "linear trans.": "linear attention",
    "linear transformer": "linear attention",
    "sparse trans.": "sparse transformer",
    "sinkhorn trans.": "sinkhorn transformer",
    "local att": "local attention",
    "hgrn1": "hgrn",
    "transformer": "softmax",
    "s4-legs": "s4",
}


@dataclass(frozen=True, kw_only=True)
class Score:
    """One score as it is shown: 39.62 ± 0.62, or FAIL for no better than chance.

    Args:
        text: text of the score.
        value: the number; None for FAIL.
    """

    text: str
    value: float | None


@dataclass(frozen=True, kw_only=True)
class LeaderboardLine:
    """One line of the leaderboard.

    Args:
        model: name of the model in its source.
        group: key that all lines of one model share.
        scores: scores by task.
        average: average that the source prints; None without one.
        averaged: how that average was computed.
        size: layers and width.
        year: year of the source; None if it is not known.
        protocol: class of the training.
        sources: sources with their addresses.
        status: how far the scores can be trusted.
        note: remarks on the scores.
        names: names of conf/attn whose cards show the line.
    """

    model: str
    group: str
    scores: Mapping[str, Score]
    average: float | None
    averaged: str
    size: str
    year: int | None
    protocol: Protocol
    sources: tuple[tuple[str, str], ...]
    status: Status
    note: str = ""
    names: tuple[str, ...] = ()

    @property
    def mean_of_five(self) -> float | None:
        """Mean over the five tasks without Path-X, comparable between sources; None if one is missing or FAIL."""
        values = [self.scores[task].value for task in FIVE if task in self.scores]
        numbers = [value for value in values if value is not None]
        return mean(numbers) if len(numbers) == len(FIVE) else None


def quoted_lines() -> list[LeaderboardLine]:
    """Make the lines of published.csv, and merge lines that repeat the numbers of another source."""
    # One line for each model of a table.
    by_line: dict[tuple[str, str, str], list[PrintedValue]] = {}
    for value in paper_values.read():
        if value.metric == "accuracy_percent" and value.task in (*TASKS, AVERAGE):
            by_line.setdefault((value.paper, value.table, value.model), []).append(value)
    return merged(_quoted_line(values) for values in by_line.values())


def _quoted_line(values: list[PrintedValue]) -> LeaderboardLine:
    """Make a line of the values of one model in one table."""
    first = values[0]
    training = training_of(first)
    scores = {}
    average = None
    # The printed average is not a score: sources average over different tasks.
    for value in values:
        if value.task == AVERAGE:
            average = value.number
        elif value.value != "NA":
            scores[value.task] = Score(text=value.text, value=value.number)
    # Each note once, in the order of print.
    notes = dict.fromkeys(value.note for value in values if value.note)
    return LeaderboardLine(
        model=first.model,
        group=group_of(first.model, first.attn),
        scores=scores,
        average=average,
        averaged=convention(scores, average, "; ".join(notes)),
        size=training.size,
        year=year_of(first),
        protocol=training.protocol,
        sources=((first.source, first.link),),
        status=status_of(notes),
        note="; ".join(notes),
        names=tuple(mechanism_of(label) for label in first.attn.split()),
    )


def merged(lines: Iterable[LeaderboardLine]) -> list[LeaderboardLine]:
    """Merge lines of one model that print the same numbers into a single line with all sources.

    The line with more scores, of two with the same number the older one, gives average, size, protocol, year and note;
    the status is the more reliable one.

    Args:
        lines: lines in the order of published.csv.
    """
    by_group: dict[str, list[LeaderboardLine]] = {}
    for line in lines:
        same_model = by_group.setdefault(line.group, [])
        index = next((i for i, other in enumerate(same_model) if repeats(line, other)), None)
        if index is None:
            same_model.append(line)
        else:
            same_model[index] = _merge(same_model[index], line)
    return [line for same_model in by_group.values() for line in same_model]


def _merge(earlier: LeaderboardLine, line: LeaderboardLine) -> LeaderboardLine:
    """Merge two lines of one model that print the same numbers, see ``merged``."""
    # The numbers belong to the older source, unless it prints fewer of them.
    longer, shorter = sorted((earlier, line), key=lambda x: (-len(x.scores), x.year or 9999))
    return replace(
        longer,
        scores={**shorter.scores, **longer.scores},
        sources=tuple(dict.fromkeys(longer.sources + shorter.sources)),
        status=min(line.status, earlier.status, key=STATUSES.index),
        names=tuple(dict.fromkeys(longer.names + shorter.names)),
    )


def repeats(line: LeaderboardLine, other: LeaderboardLine) -> bool:
    """Return whether two lines print the same numbers on at least two common tasks."""
    common = line.scores.keys() & other.scores.keys()
    differing = [task for task in common if line.scores[task].value != other.scores[task].value]
    # Two FAILs agree without a number that could identify the source.
    numbers = [task for task in common if line.scores[task].value is not None]
    return len(numbers) > 1 and not differing


def group_of(model: str, attn: str) -> str:
    """Key of a model that its lines share: its name in conf/attn, else its name without brackets in one spelling.

    Args:
        model: name of the model in its source.
        attn: labels of the same mechanism in this suite, separated by blanks; empty without one.
    """
    # Several labels belong to the first mechanism, a label with options to the mechanism without them.
    if attn:
        name = _without_options(attn).split()[0]
        # sdpa and softmax compute the same function.
        return re.sub(r"^sdpa\b", "softmax", name)
    name = re.sub(r"\s*\(.*?\)", "", model).lower().strip()
    return ALIASES.get(name, name)


def mechanism_of(label: str) -> str:
    """Name of the mechanism of a label, without options and pretraining: nystrom of nystrom-optim.lr=0.001."""
    return _without_options(label).partition("+")[0]


def _without_options(labels: str) -> str:
    return re.sub(r"-[\w.]+=[^+]*", "", labels)


def convention(scores: Mapping[str, Score], average: float | None, note: str = "") -> str:
    """Describe over which tasks a source averages: the first rule whose mean is the printed average.

    Args:
        scores: scores by task.
        average: average that the source prints.
        note: remarks on the scores, which may state that the average is not the mean of the tasks.

    Returns:
        The rule; ``unclear`` if none agrees, empty without an average.
    """
    if average is None:
        return ""
    # If the note says that the average is not the mean of the tasks, a rule would agree by coincidence, unless the note
    # also says how the average comes about ("equals ...", "implies ...").
    if "average is NOT" in note and not re.search("equals|implies", note):
        return "unclear"
    values = {task: score.value for task, score in scores.items()}
    rules = averaging_rules(values)
    if not rules:
        return "tasks not recorded"
    for name, averaged_values in rules.items():
        if abs(mean(averaged_values) - average) < ROUNDING:
            return name
    return "unclear"


def averaging_rules(values: Mapping[str, float | None]) -> dict[str, list[float]]:
    """List the rules by which a source may average, each with the numbers whose mean it would print.

    Args:
        values: scores by task; None for FAIL.

    Returns:
        The rules in the order of preference; none without a score on a task other than Path-X.
    """
    other_tasks = [value for task, value in values.items() if task != "pathfinder_x" and value is not None]
    path_x = values.get("pathfinder_x")
    if not other_tasks:
        return {}
    rules = {}
    # With a score on Path-X: all tasks, or the five without ListOps. If ListOps has no score, both rules average the
    # same numbers; for five numbers only the second rule is listed.
    if path_x is not None:
        with_path_x = [*other_tasks, path_x]
        without_listops = [value for task, value in values.items() if task != "listops" and value is not None]
        if len(with_path_x) == 6:
            rules["six tasks"] = with_path_x
        elif with_path_x != without_listops or len(without_listops) != 5:
            rules[f"{len(with_path_x)} tasks, Path-X among them"] = with_path_x
        if len(without_listops) == 5:
            rules["five tasks, ListOps left out"] = without_listops
    num_tasks = len(other_tasks)
    number_word = {4: "four", 5: "five"}.get(num_tasks, num_tasks)
    left_out = "Path-X" if num_tasks == 5 else "the others"
    rules[f"{number_word} tasks, {left_out} left out"] = other_tasks
    # Without a score on Path-X, a source may count each FAIL, or the Path-X that it does not print, as 50 or 0.
    if path_x is None:
        failed = [task for task, value in values.items() if value is None]
        num_missing = max(len(failed), 1)
        name = "missing Path-X" if set(failed) <= {"pathfinder_x"} else "each FAIL"
        for substitute in (50.0, 0.0):
            rules[f"{name} as {substitute:.0f}"] = other_tasks + [substitute] * num_missing
    return rules


def status_of(notes: Iterable[str]) -> Status:
    """Status of printed values by their notes."""
    texts = list(notes)
    if any(text.startswith("recalled") for text in texts):
        return "recalled"
    return "digest" if any(text.startswith("digest") for text in texts) else "quoted"


def year_of(value: PrintedValue) -> int | None:
    """Year of a result: from its note, else from the paper's name, else from the arXiv number; None without a year."""
    # Only external entries of the official leaderboard, which are later than its paper, have a year in the note.
    year = re.search(r"(?<=external entry of )20\d\d", value.note)
    year = year or re.search(r"\b20\d\d\b", value.paper.partition("arXiv")[0])
    if year:
        return int(year[0])
    # arXiv 2102.03902 was submitted in February 2021.
    number = re.search(r"arXiv (\d\d)\d\d\.", value.paper)
    return 2000 + int(number[1]) if number else None
