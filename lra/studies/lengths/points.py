"""Errors in percent over the length of a task: of finished runs, and the published ones."""

import re
from collections.abc import Iterable

import pandas as pd

from ...report import published
from ...runs.record import RunRecord

TASKS = ("adding", "temporal_order")
FIGURE = ("PSF-Attn", "text of Section 5.2 (Fig. 5)")  # paper and table of published.csv
_NAME = re.compile(rf"({'|'.join(TASKS)})_N(\d+)(?:_to_N(\d+))?")


def measured(records: Iterable[RunRecord]) -> pd.DataFrame:
    """List the runs of tasks of ``TASKS`` by task, length, mechanism and seed, in this order; others are left out.

    Returns:
        A row for each run: its error is 100 less its test score, NaN if it diverged; ``constant`` is the error of the
        best constant answer on the same test examples.
    """
    columns = ["task", "length", "mechanism", "seed", "budget", "constant", "error"]
    rows = [
        (found[1], int(found[2]), r.label, r.seed, r.budget, r.constant_baseline, r.test)
        for r in records
        if (found := _NAME.fullmatch(r.task)) and not found[3]
    ]
    table = pd.DataFrame(rows, columns=columns).astype({"error": float})
    table[["constant", "error"]] = 100 - table[["constant", "error"]]
    return table.sort_values(["task", "length", "mechanism", "seed"], ignore_index=True)


def printed() -> pd.DataFrame:
    """List the numbers that the paper gives for its Figure 5 in the text, the only ones that are not read off a curve.

    Returns:
        A row for each number and length: the paper's name of the mechanism, ``attn``, the corresponding name of
        conf/attn, and the error. A number for a range of lengths counts for every power of two in it.
    """
    found = []
    for row in published.read():
        if (row.name, row.table) == FIGURE:
            task, first, last = _NAME.fullmatch(row.task).groups()
            error = row.number if row.metric == "error_percent" else round(100 - row.number, 2)
            lengths = [2**i for i in range(20) if int(first) <= 2**i <= int(last or first)]
            found += [(task, length, row.model, row.attn, error) for length in lengths]
    return pd.DataFrame(found, columns=["task", "length", "mechanism", "attn", "error"])
