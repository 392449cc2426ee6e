"""Comparisons below the Arena's table: selections of CUR with each other, and bf16 with fp32."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from ..evaluate import compare
from ..runs import reader
from ..runs.reader import CONTROL
from .arena_entries import LONGER, TITLES, ArenaEntry, belongs, gain_cell, spread_text
from .statistics import holm
from .summary import Row
from .table import Cell, Table, frame

LEVEL = 0.05


def pair_table(task: str, lines: list[ArenaEntry]) -> Table | None:
    """Compare the selections of CUR with each other on the fresh examples; None without two of them with two seeds.

    Args:
        task: name of the task.
        lines: entries of the task.
    """
    outcomes = {}
    digests = set()
    for entry in lines:
        if entry.name.startswith("cur_") and len(entry.fresh) > 1:
            outcomes[entry.name] = entry.outcomes()
            digests |= {result.data for result in entry.fresh.values()}
    if len(outcomes) < 2 or len(digests) > 1:
        return None
    pairs = compare.all_pairs(outcomes)
    corrected = holm({" ".join(pair): result.p for pair, result in pairs.items()})
    rows = []
    for pair, result in pairs.items():
        p = corrected[" ".join(pair)]
        rows.append(
            [
                f"{pair[0]} - {pair[1]}",
                Cell.of(result.value, "{:+.2f}".format),
                f"{result.low:+.2f} to {result.high:+.2f}",
                Cell.of(p, "{:.3f}".format),
                "yes" if p < LEVEL else "no",
            ]
        )
    return Table(
        name=f"arena-{task}-selections",
        title=f"{TITLES[task]}: which selections of CUR differ",
        about="Difference of the fresh-test scores in points, on the same examples, with a 95 % interval over seeds "
        f"and examples (two-way random effects). p: corrected for {len(pairs)} comparisons (Holm).",
        cells=frame(("pair", "difference", "interval", "p", "significant"), rows),
        words=("pair", "interval", "significant"),
    )


def precision_table(studies: dict[str, list[Row]]) -> Table | None:
    """Compare mechanisms that were trained in bf16 and in fp32; None if there are none."""
    by_label: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
    for row in (row for rows in studies.values() for row in rows):
        if belongs(row) and not row.study.startswith(LONGER):
            by_label[row.task, row.label][precision(row.runs)] = row
    lines = []
    for (task, label), by_precision in sorted(by_label.items()):
        if {"bf16", "fp32"} <= by_precision.keys():
            narrow, full = by_precision["bf16"], by_precision["fp32"]
            as_control = ArenaEntry(label, narrow, full, {})
            difference = (
                gain_cell(as_control) if label != CONTROL else Cell.of(narrow.test - full.test, "{:+.1f}".format)
            )
            lines.append(
                [label, TITLES[task], spread_text(full), str(full.n), spread_text(narrow), str(narrow.n), difference]
            )
    if not lines:
        return None
    return Table(
        name="arena-precision",
        title="bf16 compared with fp32",
        about="Test scores of the same training in both precisions; difference: bf16 minus fp32, with a 95 % interval.",
        cells=frame(("mechanism", "task", "fp32", "n", "bf16", "n (bf16)", "difference"), lines),
        words=("mechanism", "task"),
    )


def precision(folders: Iterable[Path]) -> str:
    """Precision of the training of runs, fp32 if their configuration does not name one."""
    names = {reader.read_choices(folder).get("trainer.precision", "fp32") for folder in folders}
    return " / ".join(sorted(names))
