"""Values printed in the papers: published.csv, and which of them may stand next to our runs."""

import csv
import functools
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Literal, NamedTuple

import yaml

# The tasks of the benchmark and their names in tables.
TITLES = {
    "listops": "ListOps",
    "text": "Text",
    "retrieval": "Retrieval",
    "image": "Image",
    "pathfinder": "Pathfinder",
    "pathfinder_x": "Path-X",
}
TASKS = tuple(TITLES)
# Classes of trainings, explained in sources.yaml.
Protocol = Literal["two-layer", "official", "s4-sized", "pretrained", "other"]
# Runs with these choices may be compared with published values.
COMPARABLE = {"protocol paper", "budget paper"}
ACCURACY = "accuracy_percent"
# Values of published.csv that are not numbers.
NOT_A_NUMBER = ("FAIL", "NA")
_SHORT = {"PSF-Attn": "PSF", "SOFT/SOFT++": "SOFT", "Long Range Arena": "leaderboard"}
_LINKS = {
    "CURformer": "https://doi.org/10.1007/s10994-025-06768-3",
    "PSF-Attn": "https://doi.org/10.1016/j.neunet.2022.04.014",
    "Long Range Arena": "https://github.com/google-research/long-range-arena",
    "MLRA": "https://github.com/fluderm/MLRA",
    "WavSpA": "https://github.com/EvanZhuang/wavspa",
    "PolaFormer": "https://github.com/ZacharyMeng/PolaFormer",
    "ChordMixer": "https://github.com/RuslanKhalitov/ChordMixer",
}


@dataclass(frozen=True, kw_only=True)
class PrintedValue:
    """One printed number, a row of published.csv. Every column is text, as printed.

    Args:
        paper: short title, authors, year, and where the paper appeared.
        table: table or section of the paper; LRA if its number is not known.
        model: the paper's name of the mechanism.
        task: name of the task.
        metric: name of the metric, which includes its unit.
        value: the number, FAIL (no better than chance) or NA.
        std: the spread printed with it; empty if there is none.
        note: remark on the value.
        attn: the corresponding names of conf/attn, separated by spaces; a pretrained one has its objective
            (sdpa+masked).
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
        """Name of the paper without its authors and year."""
        return self.paper.split(" (")[0]

    @property
    def source(self) -> str:
        """Short name, such as ``CURformer T1``; ``PSF T3 (Xiong et al. 2021)`` if the table names an origin."""
        source = _SHORT.get(self.name, self.name)
        if self.table not in ("leaderboard", "LRA"):
            source += " " + self.table.replace("Table ", "T")
        origin = re.search(r" \([^)]* \d{4}\)$", self.model)
        return source + origin[0] if origin else source

    @property
    def link(self) -> str:
        """Address of the paper, by ``_LINKS`` or the arXiv number in ``paper``. Raises ValueError without either."""
        if self.name in _LINKS:
            return _LINKS[self.name]
        _, _, arxiv_number = self.paper.partition("arXiv ")
        match = re.match(r"[0-9.]+", arxiv_number)
        if match is None:
            raise ValueError(f"published.csv: {self.paper} has neither an address nor an arXiv number")
        return f"https://arxiv.org/abs/{match[0]}"

    @property
    def number(self) -> float | None:
        """The value, None for FAIL and NA."""
        return None if self.value in NOT_A_NUMBER else float(self.value)

    @property
    def text(self) -> str:
        """The value as printed, with its spread."""
        return f"{self.value} ± {self.std}" if self.std else self.value


@functools.cache
def read() -> tuple[PrintedValue, ...]:
    """Read every row of published.csv, in its order."""
    with open(Path(__file__).with_name("published.csv"), newline="", encoding="utf-8") as file:
        return tuple(PrintedValue(**row) for row in csv.DictReader(file))


class PublishedTraining(NamedTuple):
    """The training behind a printed value.

    Args:
        protocol: class of the training.
        size: size of the encoder, such as "2 layers, d 64", or "not printed".
    """

    protocol: Protocol
    size: str


def training_of(value: PrintedValue) -> PublishedTraining:
    """Look up the training behind a printed value. Raises ValueError if sources.yaml has no entry for it."""
    # The first entry that fits.
    for entry in _trainings():
        is_source = entry["source"] == [value.name, value.table]
        is_model = re.search(entry.get("model", ""), value.model)
        has_note = re.search(entry.get("note", ""), value.note)
        if is_source and is_model and has_note:
            return PublishedTraining(entry["protocol"], entry["size"])
    raise ValueError(f"lra/results/sources.yaml has no entry for {value.name}, {value.table}; add one")


@functools.cache
def _trainings() -> list[dict]:
    return yaml.safe_load(Path(__file__).with_name("sources.yaml").read_text(encoding="utf-8"))


def task_order(task: str) -> tuple[int, str]:
    """Sort key of a task: the order of the benchmark, then other tasks by name."""
    if task in TASKS:
        return TASKS.index(task), task
    return len(TASKS), task


def accuracies(label: str, tasks: Collection[str]) -> list[PrintedValue]:
    """List the published accuracies of a label on LRA tasks, in percent.

    Args:
        label: label of a run; only a name of conf/attn, or one with an objective (sdpa+masked), has published values.
        tasks: tasks to list.
    """
    values = []
    for value in read():
        is_asked = value.task in tasks and value.task in TASKS
        if is_asked and value.metric == ACCURACY and label in value.attn.split():
            values.append(value)
    return values


def incomparable_choices(facts: Iterable[Mapping[str, str]]) -> str:
    """List the choices that make runs incomparable with published values: "budget quick, protocol clean".

    Args:
        facts: facts of rows, with the keys protocol, budget and data, which is empty for the official data.
    """
    choices = set()
    for row_facts in facts:
        for key in ("protocol", "budget", "data"):
            if row_facts[key]:
                choices.add(f"{key} {row_facts[key]}")
    return ", ".join(sorted(choices - COMPARABLE))


def caution(facts: Iterable[Mapping[str, str]]) -> str:
    """Make a sentence of ``incomparable_choices``; "" if there are none."""
    facts = list(facts)
    choices = incomparable_choices(facts)
    if not choices:
        return ""
    has_comparable_rows = not all(incomparable_choices([row_facts]) for row_facts in facts)
    subject = "Some rows are not comparable" if has_comparable_rows else "Not comparable"
    return f"{subject} with the published values: {choices}."


def averages(label: str, tasks: Collection[str]) -> list[tuple[str, float]]:
    """Average the published accuracies of a label over exactly these tasks.

    The averages that the papers print are not used, since they are over different sets of tasks.

    Args:
        label: label of a run.
        tasks: tasks to average over.

    Returns:
        (name, mean) for each source that prints a number for every one of the tasks. The name contains the model if the
        source has several of this label.
    """
    # A table may have several models of one label: Transformer and FlashAttention compute the same function.
    sources: dict[tuple[str, str], list[float]] = defaultdict(list)
    for value in accuracies(label, tasks):
        if value.number is not None:
            sources[value.source, value.model].append(value.number)
    # A source that lacks a task would average over other tasks.
    complete = {key: numbers for key, numbers in sources.items() if len(numbers) == len(tasks)}
    counts = Counter(source for source, _ in complete)
    means = []
    for (source, model), numbers in complete.items():
        name = f"{source}, {model}" if counts[source] > 1 else source
        means.append((name, mean(numbers)))
    return means


def notes(values: Iterable[PrintedValue]) -> list[str]:
    """List each source in full as a Markdown item, and below it the notes on its values.

    Args:
        values: values that the report shows.
    """
    # Source -> (note, model) -> tasks.
    tree: dict[str, dict[tuple[str, str], list[str]]] = defaultdict(lambda: defaultdict(list))
    for value in dict.fromkeys(values):
        source = f"- {value.source}: {value.paper}"
        if value.table != "leaderboard":
            source += f", {value.table}"
        tasks_by_note = tree[source]
        tasks_by_note[value.note, value.model].append(value.task)

    # Sources in alphabetical order, each with its notes.
    lines = []
    for source, tasks_by_note in sorted(tree.items()):
        lines.append(source)
        for (note, model), tasks in tasks_by_note.items():
            if note:
                names = ", ".join(tasks)
                lines.append(f"  - {note} ({model}: {names})")
    return lines
