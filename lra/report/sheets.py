"""The comparison as tables of numbers: our records beside what the papers printed."""

from collections.abc import Iterable
from statistics import mean, median
from typing import NamedTuple

from ..runs.record import RunRecord
from . import published
from .published import Published
from .summary import FACTS, Row

SELECTION = "CURformer T4"  # the published table of ways to select rows and columns


class Sheet(NamedTuple):
    """A head and its rows; None where there is no number."""

    head: list[str]
    rows: list[list]


def accuracy(studies: dict[str, list[Row]]) -> Sheet:
    """A line for each study, task and mechanism; a column for each paper that printed numbers for one of them."""
    lines = [
        (study, row, published.accuracies(row.label, [row.task])) for study, rows in studies.items() for row in rows
    ]
    papers = sorted({value.source for _, _, values in lines for value in values})
    head = ["study", "task", "mechanism", "test", "std", "n", "lost", "dev", "constant"]
    rows = []
    for study, row, values in lines:
        printed = {value.source: _number(value.value) for value in values}
        links = " ".join(dict.fromkeys(value.link for value in values))
        ours = [study, row.task, row.label, row.test, row.std, row.n, row.lost, row.dev, row.constant_baseline]
        told = [row.facts[key] for key in FACTS]
        rows.append([*ours, *(printed.get(paper) for paper in papers), links, *told, "; ".join(row.remarks)])
    return Sheet([*head, *papers, "links", *FACTS, "remarks"], rows)


def selection(studies: dict[str, list[Row]]) -> Sheet:
    """CURformer's Table 4 with ours beside it, for each study that compares two or more ways to select."""
    words = {word for value in published.read() if value.source == SELECTION for word in value.attn.split()}
    found = {study: [row for row in rows if row.label in words] for study, rows in studies.items()}
    found = {study: rows for study, rows in found.items() if len({row.label for row in rows}) > 1}
    tasks = list(dict.fromkeys(row.task for rows in found.values() for row in rows))
    head = ["study", "mechanism"]
    for task in tasks:
        head += [task, f"{task} std", f"{task} n", f"{task} {SELECTION}"]
    lines = []
    for study, rows in found.items():
        for label in sorted({row.label for row in rows}):
            line = [study, label]
            for task in tasks:
                row = next((row for row in rows if (row.task, row.label) == (task, label)), None)
                printed = [v.value for v in published.accuracies(label, [task]) if v.source == SELECTION]
                line += [row.test, row.std, row.n] if row else [None, None, None]
                line.append(_number(printed[0]) if printed else None)
            lines.append(line)
    return Sheet(head, lines)


def efficiency(records: Iterable[RunRecord]) -> Sheet:
    """Step time (median), peak memory (largest) and parameters of the finished seeds, on each device apart.

    A result that is there twice, as a copy, counts once.
    """
    groups: dict[tuple, list[RunRecord]] = {}
    for r in {(r.study, r.task, r.label, r.seed, r.fingerprint, r.device): r for r in records}.values():
        if r.status == "done":
            groups.setdefault((r.study, r.task, r.label, r.device), []).append(r)
    rows = []
    for (study, task, label, device), seeds in sorted(groups.items()):
        times = [r.step_ms for r in seeds if r.step_ms is not None]
        peaks = [r.peak_bytes for r in seeds if r.peak_bytes is not None]
        rows.append(
            [
                *(study, task, label, device, len(seeds)),
                median(times) if times else None,
                max(peaks) / 2**20 if peaks else None,
                seeds[0].params,
                mean(r.test for r in seeds),
            ]
        )
    return Sheet(["study", "task", "mechanism", "device", "n", "ms a step", "peak MiB", "params", "test"], rows)


def shown(studies: dict[str, list[Row]]) -> list[Published]:
    """Every published value that stands beside one of ours."""
    values = [v for rows in studies.values() for row in rows for v in published.accuracies(row.label, [row.task])]
    return list(dict.fromkeys(values))


def sources(studies: dict[str, list[Row]]) -> Sheet:
    """Those values as printed, and where they come from."""
    rows = [[v.source, v.model, v.task, v.value, v.std, v.note, v.paper, v.table, v.link] for v in shown(studies)]
    return Sheet(["source", "model", "task", "value", "std", "note", "paper", "table", "link"], rows)


def _number(printed: str) -> float | None:
    return None if printed in ("FAIL", "NA") else float(printed)
