"""The cost of the mechanisms of a board, at the token budget at which they were scored."""

import itertools
import re
from statistics import median

from ...runs.bench_record import BenchRecord
from .results import BoardResults

# Number of tokens at which mechanisms are timed.
LENGTH = 4096
# The tasks of the board give every mechanism a token budget of length / 8 (conf/experiment/board_*.yaml).
LENGTH_PER_BUDGET = 8
# Name of the benchmark record in the folder of the published board.
FILE = "costs.json"
TOKEN_BUDGET = re.compile(r"\+*budgets\.(\w+)\.allowance=(\d+)")


def costs(board: BoardResults) -> tuple[dict[str, float], str]:
    """Find the milliseconds of each mechanism.

    Only benchmarks of forward and backward passes at 4,096 tokens with the token budget of the board count. Without
    one, the steps of the runs themselves are used.

    Returns:
        Milliseconds by label, and the name of the axis.
    """
    for record, what in itertools.product(board.measured, ("block", "attention")):
        if not has_board_budget(record):
            continue
        rows = [row for row in record.rows if (row.n, row.what, row.mode) == (LENGTH, what, "training")]
        times = {row.mechanism: row.ms for row in rows if row.ms and row.mechanism in board.scores}
        if len(times) > 1:
            clock = " of CPU time" if record.choices.get("clock") == "cpu" else ""
            budget = f"token budget {LENGTH // LENGTH_PER_BUDGET}"
            return times, f"ms{clock}, forward and backward of {what} at {LENGTH:,} tokens, {budget}"
    return _step_times(board), "ms per step on the tasks of the board, median over tasks"


def has_board_budget(record: BenchRecord) -> bool:
    """Whether a benchmark gave the mechanisms the token budget of the board at 4,096 tokens."""
    budget_name = record.choices.get("budget")
    for override in record.choices.get("overrides") or ():
        match = TOKEN_BUDGET.fullmatch(override)
        if match and match[1] == budget_name:
            return int(match[2]) * LENGTH_PER_BUDGET == LENGTH
    return False


def _step_times(board: BoardResults) -> dict[str, float]:
    """Return the median step time of each mechanism over the tasks."""
    times = {}
    for label in board.scores:
        values = [row.ms for row in board.rows if row.label == label and row.ms is not None]
        if values:
            times[label] = median(values)
    return times
