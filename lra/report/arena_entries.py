"""Lines of the Arena's table: the runs of each mechanism at the papers' budget."""

import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev, variance

import numpy as np
from scipy import stats

from ..evaluate import record as fresh_record
from ..evaluate.record import FreshTest
from ..results import published
from ..results.lr_search import BOARD, SEARCH_SUFFIX
from ..results.summary import Row
from ..results.table import Cell
from ..runs.reader import CONTROL

# Studies of the longer training that the authors of CURformer released.
LONGER = "curformer_listops"
LEVEL = 0.05


@dataclass(frozen=True)
class ArenaEntry:
    """One line of the Arena's table.

    Args:
        name: name of the line; the label, with the number of steps for the longer training.
        row: runs of the mechanism.
        control: runs of the control in the same study; None without any.
        fresh: fresh-test results by seed.
    """

    name: str
    row: Row
    control: Row | None
    fresh: dict[int, FreshTest]

    def outcomes(self) -> np.ndarray:
        """Outcomes (seeds, examples) on the fresh examples."""
        return np.array([self.fresh[seed].is_correct() for seed in sorted(self.fresh)], float)


def entries(studies: dict[str, list[Row]]) -> dict[str, list[ArenaEntry]]:
    """Choose the runs of the table: those at the papers' budget, of each mechanism the study with the most seeds.

    Args:
        studies: rows of each study.

    Returns:
        The entries of each task of the benchmark that has a finished run, the highest test score first.
    """
    by_name: dict[tuple[str, str], list[Row]] = defaultdict(list)
    controls: dict[tuple[str, str], Row] = {}
    for row in (row for rows in studies.values() for row in rows):
        if not belongs(row):
            continue
        name = f"{row.label} ({row.facts['steps']} steps)" if row.study.startswith(LONGER) else row.label
        by_name[row.task, name].append(row)
        if row.label == CONTROL:
            controls[row.study, row.task] = row

    # With the same number of seeds of a mechanism, the study with more seeds in all counts.
    seeds_of_study: dict[str, int] = defaultdict(int)
    for rows in by_name.values():
        for row in rows:
            seeds_of_study[row.study] += row.n

    by_task: dict[str, list[ArenaEntry]] = {}
    for task in published.TASKS:
        lines = []
        for (of_task, name), rows in by_name.items():
            if of_task == task:
                row = max(rows, key=lambda row: (row.n, seeds_of_study[row.study], row.study))
                lines.append(ArenaEntry(name, row, controls.get((row.study, task)), fresh_results(row)))
        if lines:
            by_task[task] = sorted(lines, key=lambda entry: -entry.row.test)
    return by_task


def belongs(row: Row) -> bool:
    """Tell whether runs stand in the Arena's table: a task at the papers' budget, trained from scratch."""
    at_papers_budget = (row.facts["protocol"], row.facts["budget"]) == ("paper", "paper")
    is_board = row.study == BOARD or row.study.endswith(SEARCH_SUFFIX)
    is_from_scratch = not row.objective and not is_board
    return row.task in published.TASKS and at_papers_budget and bool(row.scores) and is_from_scratch


def fresh_results(row: Row) -> dict[int, FreshTest]:
    """Read the fresh-test results of runs by seed; only results on the same examples as the first seed count."""
    results = {}
    tables: dict[Path, list[FreshTest]] = {}
    for folder, run_record in row.runs.items():
        path = folder / fresh_record.NAME
        if path.exists():
            candidates = [fresh_record.load(path)]
        else:
            study = folder.parents[2]
            candidates = tables.setdefault(study, fresh_record.read_table(study))
        for result in candidates:
            if result.fingerprint == run_record.fingerprint:
                results[run_record.seed] = result
    digests = {result.data for result in results.values()}
    if len(digests) > 1:
        # Results on other examples than most do not compare; keep the largest set of examples.
        largest = max(results.values(), key=lambda result: result.examples).data
        results = {seed: result for seed, result in results.items() if result.data == largest}
    return results


def spread_text(row: Row) -> str:
    """Format the test score of runs: 36.02 ± 0.31, with the number of collapsed seeds."""
    values = list(row.scores.values())
    text = f"{mean(values):.2f}"
    if len(values) > 1:
        text += f" ± {stdev(values):.2f}"
    if row.collapsed:
        text += f" (collapsed {len(row.collapsed)}/{len(values)})"
    return text


def gain_cell(entry: ArenaEntry) -> Cell:
    """Make the cell of the gain over the control, with Welch's interval if both have two seeds or more."""
    if entry.control is None or entry.row.label == CONTROL:
        return Cell(text="-")
    scores = list(entry.row.scores.values())
    control = list(entry.control.scores.values())
    gain = mean(scores) - mean(control)
    if min(len(scores), len(control)) < 2:
        return Cell(text=f"{gain:+.1f}", value=gain, note="an interval needs two seeds on both sides")

    # Welch: unequal variances, degrees of freedom by Welch and Satterthwaite.
    terms = [(variance(side) / len(side), len(side) - 1) for side in (scores, control)]
    total = sum(term for term, _ in terms)
    if not total:
        return Cell(text=f"{gain:+.1f}", value=gain)
    freedom = total**2 / sum(term**2 / degrees for term, degrees in terms)
    half_width = stats.t.ppf(1 - LEVEL / 2, freedom) * math.sqrt(total)
    low, high = gain - half_width, gain + half_width
    return Cell(text=f"{gain:+.1f} ({low:+.1f} to {high:+.1f})", value=gain, low=low, high=high)
