"""Values printed in the papers: published.csv, and the selection that is shown beside ours."""

import csv
import functools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "pathfinder_x")
COMPARABLE = {"protocol paper", "budget paper"}  # choices of runs that published values may stand beside
_SHORT = {"PSF-Attn": "PSF", "SOFT/SOFT++": "SOFT", "Long Range Arena": "leaderboard"}
_LINKS = {
    "CURformer": "https://doi.org/10.1007/s10994-025-06768-3",
    "PSF-Attn": "https://doi.org/10.1016/j.neunet.2022.04.014",
    "Long Range Arena": "https://github.com/google-research/long-range-arena",
    "MLRA": "https://github.com/fluderm/MLRA",
    # Only a summary of it was found, without an identifier.
    "suGRU": "https://scholar.google.com/scholar?q=suGRU+Long+Range+Arena",
}


@dataclass(frozen=True, kw_only=True)
class PrintedValue:
    """One printed number, a row of published.csv; every column is text, as printed.

    ``table`` is LRA if the number of the paper's table is not known.
    ``model`` is the paper's name of the mechanism, ``metric`` carries the unit. ``value`` may be FAIL (no better than
    chance) or NA; ``std`` is empty if none is printed. ``attn`` holds the names of conf/attn that correspond to the
    model, separated by spaces, a pretrained one with its objective (sdpa+masked); empty if there are none.
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
    def name(self) -> str:
        """The paper's, without its authors and year."""
        return self.paper.split(" (")[0]

    @property
    def source(self) -> str:
        """Short name, such as ``CURformer T1``; ``PSF T3 (Xiong et al. 2021)`` if the table names an origin."""
        short = _SHORT.get(self.name, self.name)
        table = "" if self.table in ("leaderboard", "LRA") else " " + self.table.replace("Table ", "T")
        origin = re.search(r" \([^)]* \d{4}\)$", self.model)
        return short + table + (origin[0] if origin else "")

    @property
    def link(self) -> str:
        """Address of the paper; an arXiv number is part of its name."""
        return _LINKS.get(self.name) or f"https://arxiv.org/abs/{re.search(r'(?<=arXiv )[0-9.]+', self.paper)[0]}"

    @property
    def number(self) -> float | None:
        """The value, None for FAIL and NA."""
        return None if self.value in ("FAIL", "NA") else float(self.value)

    @property
    def text(self) -> str:
        """The value as printed, with its spread."""
        return f"{self.value} ± {self.std}" if self.std else self.value


@functools.cache
def read() -> tuple[PrintedValue, ...]:
    """Read every row of published.csv, in its order."""
    with open(Path(__file__).with_name("published.csv"), newline="", encoding="utf-8") as file:
        return tuple(PrintedValue(**row) for row in csv.DictReader(file))


def accuracies(label: str, tasks: Collection[str]) -> list[PrintedValue]:
    """List the published accuracies of a label on LRA tasks, in percent.

    Args:
        label: label of a run; only a name of conf/attn without changed options has published values.
        tasks: tasks to list.
    """
    wanted = set(tasks) & set(TASKS)
    return [v for v in read() if label in v.attn.split() and v.metric == "accuracy_percent" and v.task in wanted]


def unlike(facts: Iterable[Mapping[str, str]]) -> str:
    """Name the choices that set runs apart from published values: budget quick, protocol clean; "" if there are none.

    Args:
        facts: facts of rows, with the keys protocol, budget and data, which is empty for the official data.
    """
    words = {f"{key} {one[key]}" for one in facts for key in ("protocol", "budget", "data") if one[key]}
    return ", ".join(sorted(words - COMPARABLE))


def caution(facts: Iterable[Mapping[str, str]]) -> str:
    """Make a sentence of the choices that ``unlike`` names, "" if there are none."""
    words = unlike(facts)
    return f"Not comparable with the published values: {words}." if words else ""


def averages(label: str, tasks: Collection[str]) -> list[tuple[str, float]]:
    """Average the published accuracies of a label over exactly these tasks.

    The averages that the papers print are not used, since they are over different sets of tasks.

    Args:
        label: label of a run.
        tasks: tasks to average over.

    Returns:
        (source, mean) for each source that prints a number for every one of the tasks.
    """
    sources: dict[str, list[float]] = defaultdict(list)
    for row in accuracies(label, tasks):
        if row.number is not None:
            sources[row.source].append(row.number)
    return [(source, mean(values)) for source, values in sources.items() if len(values) == len(tasks)]


def notes(shown: Iterable[PrintedValue]) -> list[str]:
    """List each source in full as a Markdown item, and below it the notes on its values that are shown."""
    tree: dict[str, dict[tuple[str, str], list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in dict.fromkeys(shown):
        table = "" if row.table == "leaderboard" else f", {row.table}"
        tree[f"- {row.source}: {row.paper}{table}"][row.note, row.model].append(row.task)
    lines = []
    for source, below in sorted(tree.items()):
        lines.append(source)
        lines += [f"  - {note} ({model}: {', '.join(tasks)})" for (note, model), tasks in below.items() if note]
    return lines
