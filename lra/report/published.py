"""Values printed in the papers: published.csv, and those of it that stand beside ours."""

import csv
import functools
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "pathfinder_x")
_SHORT = {"CURformer": "CURformer", "PSF-Attn": "PSF", "SOFT/SOFT++": "SOFT", "Long Range Arena": "leaderboard"}
_LINKS = {
    "CURformer": "https://doi.org/10.1007/s10994-025-06768-3",
    "PSF-Attn": "https://doi.org/10.1016/j.neunet.2022.04.014",
    "SOFT/SOFT++": "https://arxiv.org/abs/2207.03341",
    "Long Range Arena": "https://github.com/google-research/long-range-arena",
}


@dataclass(frozen=True, kw_only=True)
class Published:
    """One printed number, a row of published.csv; every column is text, as printed.

    ``model`` is the paper's name of the mechanism, ``metric`` carries the unit. ``value`` may be FAIL (no better than
    chance) or NA; ``std`` is empty where none is printed. ``attn`` holds the words of conf/attn that stand for the
    model, separated by spaces, with the objective of its pretraining (sdpa+masked); empty: none does.
    """

    paper: str
    table: str
    model: str
    task: str
    metric: str
    value: str
    std: str
    note: str
    attn: str

    @property
    def source(self) -> str:
        """``CURformer T1``, ``leaderboard``; ``PSF T3 (Xiong et al. 2021)`` where the table names an origin."""
        short = _SHORT[self.paper.split(" (")[0]]
        table = "" if self.table == "leaderboard" else " " + self.table.replace("Table ", "T")
        origin = re.search(r" \([^)]* \d{4}\)$", self.model)
        return short + table + (origin[0] if origin else "")

    @property
    def link(self) -> str:
        return _LINKS[self.paper.split(" (")[0]]

    @property
    def number(self) -> float | None:
        return None if self.value in ("FAIL", "NA") else float(self.value)

    @property
    def text(self) -> str:
        return f"{self.value} ± {self.std}" if self.std else self.value


@functools.cache
def read() -> tuple[Published, ...]:
    """Every row of published.csv, in its order."""
    with open(Path(__file__).with_name("published.csv"), newline="", encoding="utf-8") as file:
        return tuple(Published(**row) for row in csv.DictReader(file))


def accuracies(label: str, tasks: Collection[str] = TASKS) -> list[Published]:
    """Accuracies in percent on LRA tasks; none where the label is not a word of conf/attn with its own defaults."""
    wanted = set(tasks) & set(TASKS)
    return [
        row for row in read() if label in row.attn.split() and row.metric == "accuracy_percent" and row.task in wanted
    ]


def averages(label: str, tasks: Collection[str]) -> list[tuple[str, float]]:
    """(source, mean of its values over exactly these tasks), for the sources that print a number for each of them.

    The averages that the papers print are not used: they are over different sets of tasks.
    """
    sources: dict[str, list[float]] = {}
    for row in accuracies(label, tasks):
        if row.number is not None:
            sources.setdefault(row.source, []).append(row.number)
    return [(source, mean(values)) for source, values in sources.items() if len(values) == len(tasks)]


def notes(shown: Iterable[Published]) -> list[str]:
    """Markdown items: each source in full, and below it what to know about those of its values that are shown."""
    tree: dict[str, dict[str, list[str]]] = {}
    for row in dict.fromkeys(shown):
        table = "" if row.table == "leaderboard" else f", {row.table}"
        below = tree.setdefault(f"- {row.source}: {row.paper}{table}", {})
        if row.note:
            below.setdefault(f"{row.note} ({row.model}: ", []).append(row.task)
    lines = []
    for source in sorted(tree):
        lines.append(source)
        lines += [f"  - {note}{', '.join(tasks)})" for note, tasks in tree[source].items()]
    return lines
