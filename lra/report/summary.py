"""Rows and sections: what the records of a study say, beside the published values."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev
from typing import NamedTuple

from ..runs import record
from ..runs.record import RunRecord
from . import published

HEAD = ("mechanism", "test", "n", "dev", "constant", "ms", "params")
AVERAGED = (
    "Means over tasks, compared only between mechanisms with the same tasks. Published means are recomputed from the "
    "values per task over exactly these tasks."
)
SEPARATOR = " / "
# Said once for a table where its rows agree, and in each row where they do not.
FACTS = {
    "protocol": "protocol {}",
    "budget": "budget {}",
    "metric": "{}",
    "n_test": "{} test examples",
    "steps": "{} steps",
    "device": "{}",
    "git": "commit {}",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """The seeds of one task and label of a study.

    Scores in percent and ``ms`` are over the ``n`` finished seeds, None without any; ``lost`` counts the other seeds
    and ``remarks`` says what became of them. ``constant_baseline``, ``params`` and ``facts`` (by the keys of FACTS) are
    what the seeds share, or each of their values, joined by " / ".
    ``runs`` holds the records by their folders.
    """

    task: str
    label: str
    test: float | None
    std: float | None
    n: int
    lost: int
    remarks: list[str]
    dev: float | None
    ms: float | None
    constant_baseline: str
    params: str
    facts: dict[str, str]
    runs: dict[Path, RunRecord]

    @property
    def scores(self) -> dict[int, float]:
        """Test score of each finished seed."""
        return {r.seed: r.test for r in self.runs.values() if r.status == "done"}

    @property
    def peak(self) -> float | None:
        """Median peak bytes of a GPU; None on a CPU, where a record has those of the whole process."""
        sizes = [r.peak_bytes for r in self.runs.values() if r.status == "done" and not record.on_cpu(r.device)]
        return median(sizes) if sizes and None not in sizes else None

    @property
    def cells(self) -> tuple[str, ...]:
        """One text for each column of HEAD."""
        test = number(self.test) + (f" ± {self.std:.2f}" if self.std is not None else "")
        n = f"{self.n} (+{self.lost})" if self.lost else str(self.n)
        return self.label, test, n, number(self.dev), self.constant_baseline, number(self.ms, 1), self.params


class Line(NamedTuple):
    """A mechanism: a text for each column, facts by the keys of FACTS, what else to know, published (source, value)."""

    cells: tuple[str, ...]
    facts: dict[str, str]
    details: list[str]
    published: list[tuple[str, str]]


class Section(NamedTuple):
    """One table: lines that compare with each other."""

    title: str
    about: str
    head: tuple[str, ...]
    lines: list[Line]


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def joined(values: Iterable) -> str:
    """Each different value once, in order; whole numbers with thousands separators, scores with two digits."""
    forms = {int: "{:,}".format, float: number}
    return SEPARATOR.join(dict.fromkeys(forms.get(type(value), str)(value) for value in sorted(set(values))))


def collect(runs: Path, study: str | None = None) -> tuple[dict[str, list[Row]], list[str]]:
    """Rows of each study, and one line for each damaged record. Raises ValueError where there is nothing to show."""
    if not runs.is_dir():
        raise ValueError(f"{runs} is not a folder; name the folder of the runs with runs=<folder>")
    found, damaged = record.scan(runs)
    groups: dict[str, dict[tuple, dict[Path, RunRecord]]] = {}
    for folder, r in found.items():
        if r.kind == "train":
            groups.setdefault(str(r.study), {}).setdefault((_place(r.task), r.label), {})[folder] = r
    if not groups:
        more = f" that can be read ({'; '.join(damaged)})" if damaged else ""
        raise ValueError(f"{runs} has no record of a training run{more}; python -m lra.train makes them")
    if study is not None and study not in groups:
        raise ValueError(f"no study {study!r} in {runs}; there is {', '.join(sorted(groups))}")
    wanted = sorted(groups) if study is None else [study]
    return {name: [summarise(groups[name][key]) for key in sorted(groups[name])] for name in wanted}, damaged


def _place(task: str) -> tuple[int, str]:
    return (published.TASKS.index(task) if task in published.TASKS else len(published.TASKS), task)


def summarise(runs: dict[Path, RunRecord]) -> Row:
    """One row of the records of one study, task and label; a result that is there twice, as a copy, counts once."""
    once = {(r.seed, r.fingerprint, r.status, r.test): folder for folder, r in runs.items()}
    runs = {folder: runs[folder] for folder in sorted(once.values(), key=lambda folder: runs[folder].seed)}
    results = list(runs.values())
    done = [r for r in results if r.status == "done"]
    times = [r.step_ms for r in done if r.step_ms is not None]
    remarks = []
    for status in sorted({r.status for r in results} - {"done"}):
        steps = sorted(r.steps for r in results if r.status == status)
        remarks.append(f"{len(steps)} {status} at step{'s' if len(steps) > 1 else ''} {', '.join(map(str, steps))}")
    seeds = [r.seed for r in results]
    remarks += [f"{seeds.count(s)} different results of seed {s}" for s in sorted(set(seeds)) if seeds.count(s) > 1]
    values = {key: joined(getattr(r, key) for r in results) for key in FACTS if key not in ("steps", "git")}
    return Row(
        task=results[0].task,
        label=results[0].label,
        test=mean(r.test for r in done) if done else None,
        std=stdev(r.test for r in done) if len(done) > 1 else None,
        n=len(done),
        lost=len(results) - len(done),
        remarks=remarks,
        dev=mean(r.val for r in done) if done else None,
        ms=median(times) if times else None,
        constant_baseline=joined(float(r.constant_baseline) for r in results),
        params=joined(r.params for r in results),
        facts=values | {"steps": joined(r.steps for r in done), "git": joined(r.git or "unknown" for r in results)},
        runs=runs,
    )


def sections(rows: list[Row]) -> list[Section]:
    """A table for each task of a study and, where there are several tasks, one for each set of tasks averaged over."""
    tables = []
    for task, same in itertools.groupby(rows, key=lambda row: row.task):
        lines = []
        for row in same:
            values = [(value.source, value.text) for value in published.accuracies(row.label, [task])]
            lines.append(Line(row.cells, row.facts, row.remarks, values))
        tables.append(section(task, HEAD, lines))
    return tables + averages(rows)


def averages(rows: list[Row]) -> list[Section]:
    """One table for each set of two or more tasks that some mechanism has accuracies on, the largest set first."""
    labels: dict[str, list[Row]] = {}
    for row in rows:
        if row.facts["metric"] == "accuracy":
            labels.setdefault(row.label, []).append(row)
    sets: dict[tuple[str, ...], list[Line]] = {}
    for label, mine in sorted(labels.items()):
        scores = {row.task: row.test for row in mine if row.test is not None}
        if len(scores) > 1:
            facts = {
                key: joined(word for row in mine for word in row.facts[key].split(SEPARATOR))
                for key in ("protocol", "budget")
            }
            missing = [f"no finished seed on {row.task}" for row in mine if row.test is None]
            values = [(source, number(value)) for source, value in published.averages(label, scores)]
            line = Line((label, number(mean(scores.values()))), facts, missing, values)
            sets.setdefault(tuple(scores), []).append(line)
    ordered = sorted(sets, key=lambda tasks: (-len(tasks), [_place(task) for task in tasks]))
    return [section(f"mean of {', '.join(s)}", ("mechanism", "mean"), sets[s], about=AVERAGED) for s in ordered]


def section(title: str, head: tuple[str, ...], lines: list[Line], *, about: str = "") -> Section:
    """The facts that all lines share are told in ``about``, the others in the lines that have them."""
    words = {key: {line.facts[key] for line in lines} - {""} for key in lines[0].facts}
    shared = [key for key in FACTS if len(words.get(key, ())) == 1 and SEPARATOR not in "".join(words[key])]
    own = [key for key in FACTS if key in words and key not in shared]
    told = "; ".join(FACTS[key].format(*words[key]) for key in shared)
    unlike = [f"{key} {word}" for key in ("protocol", "budget") for word in sorted(words[key]) if word != "paper"]
    caution = f"Not comparable with the published values: {', '.join(unlike)}." if unlike else ""
    lines = [
        line._replace(details=line.details + [FACTS[key].format(line.facts[key]) for key in own if line.facts[key]])
        for line in lines
    ]
    return Section(
        title,
        " ".join(text for text in (told and f"{told[0].upper()}{told[1:]}.", about, caution) if text),
        head,
        lines,
    )
