"""The admission of tasks to a board: whether a task measures the mixing of tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..results.lr_search import best, trials
from ..results.palette import CONTROLS, EXACT
from ..results.statistics import SOLVED, normalised
from ..results.summary import Row
from ..results.table import Cell, Table, frame
from .results import BoardResults, normalised_scores, percent_cell

# Largest normalised score of a baseline that cannot mix tokens.
MAX_BASELINE = 0.2
# A mechanism with a test score of at least this many percent is at the ceiling.
CEILING = 98
# Largest share of mechanisms at the ceiling.
MAX_AT_CEILING = 1 / 3
# Nothing solves this task within minutes: exact attention needs this lead in points over the baselines.
UNSOLVED_TASK = "listops"
MIN_LEAD = 15
ABOUT = (
    f"A task is admitted if the controls and the bag-of-tokens baseline (bag) have normalised scores of at most "
    f"{100 * MAX_BASELINE:.0f}, every seed of {EXACT} has at least {100 * SOLVED:.0f}, and at most a third of the "
    f"mechanisms have a test score of {CEILING} % or more; on {UNSOLVED_TASK}, which nothing solves within minutes, "
    f"{EXACT} must instead of the first two lead the baselines by {MIN_LEAD} points. (search): fewer than two seeds "
    "have ended, failed ones included, so this is the single run at the best learning rate of the search."
)


@dataclass(frozen=True)
class TaskResults:
    """The results of a board on one task.

    Args:
        task: name of the task.
        rows: results by label: those at the chosen learning rate, else the best of the search.
        searched: labels whose row comes from the search.
    """

    task: str
    rows: Mapping[str, Row]
    searched: frozenset[str]

    @property
    def chance(self) -> float:
        """The chance level in percent, of the first row."""
        first_row = next(iter(self.rows.values()))
        return first_row.chance

    @property
    def bag(self) -> float | None:
        """The score of the bag-of-tokens baseline in percent; None if no record has it."""
        for row in self.rows.values():
            for r in row.runs.values():
                if r.bag is not None:
                    return r.bag
        return None

    @property
    def num_at_ceiling(self) -> int:
        """The number of mechanisms at the ceiling."""
        scores = [row.test for row in self.rows.values() if row.test is not None]
        return sum(score >= CEILING for score in scores)

    @property
    def missing(self) -> list[str]:
        """The controls and exact attention, as far as they have no run."""
        return [name for name in (*CONTROLS, EXACT) if name not in self.rows]


def admission_table(board: BoardResults) -> Table:
    """Make the table that says for each task of a board whether it is admitted."""
    tasks = dict.fromkeys(row.task for row in [*board.search, *board.rows])
    lines = [_line(_task_results(board, task)) for task in tasks]
    head = ("task", "chance", *CONTROLS, "bag", EXACT, f"{EXACT} solved", f"{CEILING} or more", "admitted")
    return Table(
        name=f"admission/{board.name}",
        title=f"{board.name}: tasks",
        about=ABOUT,
        cells=frame(head, lines),
        words=("task", "admitted"),
    )


def _task_results(board: BoardResults, task: str) -> TaskResults:
    """Take the results of the search on a task, replaced by those at the chosen rate once there are several seeds."""
    # The best trial of each mechanism.
    rows: dict[str, Row] = {}
    for (label, search_task), by_rate in trials(board.search).items():
        best_row = best(by_rate.values())
        if search_task == task and best_row:
            rows[label] = best_row
    # Two or more seeds at the chosen rate replace the trial of the search.
    searched = set(rows)
    for row in board.rows:
        num_seeds = len(row.scores) + row.num_failed
        if row.task == task and num_seeds > 1:
            rows[row.label] = row
            searched.discard(row.label)
    return TaskResults(task, rows, frozenset(searched))


def _line(results: TaskResults) -> list[Cell | str]:
    """Make the row of a task."""
    num_rows = len(results.rows)
    chance = Cell.of(results.chance if results.rows else None)
    solved = "-"
    if EXACT in results.rows:
        scores = normalised_scores(results.rows[EXACT])
        num_solved = int((scores >= SOLVED).sum())
        solved = f"{num_solved}/{len(scores)}"
    bag = Cell.of(None)
    if results.bag is not None:
        bag_score = normalised(results.bag, results.chance)
        bag = percent_cell(np.array([bag_score]))
    share = results.num_at_ceiling / max(num_rows, 1)
    at_ceiling = Cell(text=f"{results.num_at_ceiling}/{num_rows}", value=share)
    return [
        results.task,
        chance,
        *(_score_cell(results, name) for name in CONTROLS),
        bag,
        _score_cell(results, EXACT),
        solved,
        at_ceiling,
        _decision(results),
    ]


def _score_cell(results: TaskResults, label: str) -> Cell:
    if label not in results.rows:
        return Cell.of(None)
    cell = percent_cell(normalised_scores(results.rows[label]))
    if label in results.searched:
        return replace(cell, text=f"{cell.text} (search)", std=None)
    return cell


def _decision(results: TaskResults) -> str:
    """Return "yes", "no" with the reasons, or "open" with the mechanisms that have no result."""
    missing = f"open: no result of {', '.join(results.missing)}"
    if EXACT not in results.rows:
        return missing
    if results.task == UNSOLVED_TASK:
        reasons = _reasons_lead(results)
    else:
        reasons = _reasons_baselines(results) + _reasons_solved(results)
    # One reason is enough to reject a task before everything has run.
    if results.missing and not reasons:
        return missing

    # Too many mechanisms at the ceiling: the task does not separate them.
    share = results.num_at_ceiling / len(results.rows)
    if share > MAX_AT_CEILING:
        reasons.append(f"{share:.0%} of the mechanisms at the ceiling")
    return f"no: {', '.join(reasons)}" if reasons else "yes"


def _reasons_lead(results: TaskResults) -> list[str]:
    """Check the lead of exact attention over the best control and the bag-of-tokens baseline."""
    # Without a bag-of-tokens baseline, chance replaces it.
    baselines = [results.chance if results.bag is None else results.bag]
    for name in CONTROLS:
        if name in results.rows:
            baselines.append(_mean_score(results, name))
    lead = _mean_score(results, EXACT) - max(baselines)
    return [f"{EXACT} leads by {lead:.1f} points"] if lead < MIN_LEAD else []


def _mean_score(results: TaskResults, label: str) -> float:
    """Return the mean test score in percent; chance if all seeds failed."""
    score = results.rows[label].test
    return results.chance if score is None else score


def _reasons_baselines(results: TaskResults) -> list[str]:
    """List the baselines with a normalised score above MAX_BASELINE."""
    scores = {}
    for name in CONTROLS:
        if name in results.rows:
            scores[name] = float(normalised_scores(results.rows[name]).mean())
    if results.bag is not None:
        scores["bag"] = normalised(results.bag, results.chance)
    return [f"{name} at {score:.0%}" for name, score in scores.items() if score > MAX_BASELINE]


def _reasons_solved(results: TaskResults) -> list[str]:
    """Count the seeds of exact attention that do not solve the task."""
    scores = normalised_scores(results.rows[EXACT])
    num_unsolved = int((scores < SOLVED).sum())
    if num_unsolved == 0:
        return []
    return [f"{EXACT} below {SOLVED:.0%} with {num_unsolved} of {len(scores)} seeds"]
