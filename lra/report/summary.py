"""Rows: the results of each mechanism on each task, from the records of a study."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

from ..runs import reader, record
from ..runs.record import Pretraining, RunRecord
from . import published
from .published import PrintedValue
from .significance import score
from .table import Cell

SEPARATOR = " / "
# Stated once for a table if its rows agree, else in each row.
FACTS = {
    "protocol": "protocol {}",
    "budget": "budget {}",
    "metric": "{}",
    "n_test": "{} test examples",
    "steps": "{} steps",
    "pretrained": "{}",
    "device": "{}",
    "git": "commit {}",
    "data": "data of another file than the official one ({})",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """The seeds of one task and label of a study.

    ``done`` holds the finished seeds, ``scores`` the test score in percent of each, ``collapsed`` those that give every
    dev example the same answer. ``cell`` shows the scores; it is linked to the runs and notes their pretraining.
    ``test``, ``dev``, the median ``ms`` and the median ``peak`` (bytes on a GPU; of the whole process, hence None, on a
    CPU) are over the ``n`` finished seeds, None without any; ``lost`` counts the others and ``remarks`` gives their
    outcomes. ``facts`` has, by the keys of FACTS, the value that the seeds share, or all their values joined by " / ".
    ``objective`` is that of pretraining, empty without one. ``runs`` holds the records by their folders.
    """

    study: str
    task: str
    label: str
    done: list[RunRecord]
    scores: dict[int, float]
    collapsed: set[int]
    cell: Cell
    test: float | None
    n: int
    lost: int
    remarks: list[str]
    dev: float | None
    ms: float | None
    peak: float | None
    objective: str
    facts: dict[str, str]
    runs: dict[Path, RunRecord]

    @property
    def published(self) -> list[PrintedValue]:
        """The accuracies printed for the label on the task; none beside runs on other data than the official."""
        return [] if self.facts["data"] else published.accuracies(self.label, [self.task])

    @property
    def tokens(self) -> float | None:
        """Mean over finished seeds of the real tokens of all phases; None if a record does not say."""
        if not self.done or any(r.tokens is None for r in self.done):
            return None
        return mean(r.tokens + (r.pretrain.tokens if r.pretrain else 0) for r in self.done)

    @property
    def cost(self) -> str:
        """Tokens of each phase and the time of all steps: "3.1 + 3.2 M tokens, 41 s"."""
        if self.tokens is None:
            return ""
        phases = [[r.pretrain for r in self.done], self.done] if self.objective else [self.done]
        tokens = " + ".join(f"{mean(one.tokens for one in phase) / 1e6:.3g}" for phase in phases)
        times = [(one.steps, one.step_ms) for phase in phases for one in phase]
        if any(ms is None for _, ms in times):
            return f"{tokens} M tokens"
        return f"{tokens} M tokens, {sum(steps * ms for steps, ms in times) / 1000 / len(self.done):.3g} s"


def number(value: float | None) -> str:
    """Format a number with two digits; "-" for None."""
    return "-" if value is None else f"{value:.2f}"


def joined(values: Iterable) -> str:
    """Join the distinct values in order; whole numbers with thousands separators, scores with two digits."""
    forms = {int: "{:,}".format, float: number}
    return SEPARATOR.join(dict.fromkeys(forms.get(type(value), str)(value) for value in sorted(set(values))))


def collect(
    runs: Path, study: str | None = None, beside: Sequence[Path] = ()
) -> tuple[dict[str, list[Row]], list[str]]:
    """Summarise the records below a folder.

    Args:
        runs: the folder.
        study: only this one, None for all.
        beside: folders of further studies, whose records stand beside those of the same name.

    Returns:
        The rows of each study, those of the folder first, and one line for each damaged record.

    Raises:
        ValueError: there is nothing to show.
    """
    if not runs.is_dir():
        raise ValueError(f"{runs} is not a folder; name the folder of the runs with runs=<folder>")
    records, damaged = reader.scan(runs)
    own = {r.study for r in records.values()}
    for folder in beside:
        records |= reader.scan(folder)[0]
    groups: dict[str, dict[tuple, dict[Path, RunRecord]]] = defaultdict(lambda: defaultdict(dict))
    for folder, r in records.items():
        groups[r.study][task_order(r.task), r.label][folder] = r
    if not groups:
        more = f" that can be read ({'; '.join(damaged)})" if damaged else ""
        raise ValueError(f"{runs} has no record of a training run{more}; python -m lra.train makes them")
    if study is not None and study not in groups:
        raise ValueError(f"no study {study!r} in {runs}; there is {', '.join(sorted(groups))}")
    wanted = sorted(groups, key=lambda name: (name not in own, name)) if study is None else [study]
    return {name: [summarise(groups[name][key]) for key in sorted(groups[name])] for name in wanted}, damaged


def task_order(task: str) -> tuple[int, str]:
    """Sort key of a task: the order of the benchmark, then other tasks by name."""
    return (published.TASKS.index(task) if task in published.TASKS else len(published.TASKS), task)


def summarise(runs: dict[Path, RunRecord]) -> Row:
    """Summarise the records of one study, task and label; a copy of a result counts once."""
    folders = {(r.seed, r.fingerprint, r.status, r.test): folder for folder, r in runs.items()}
    runs = {folder: runs[folder] for folder in sorted(folders.values(), key=lambda folder: runs[folder].seed)}
    results = list(runs.values())
    done = [r for r in results if r.status == "done"]
    scores, devs = _by_seed(done, "test"), _by_seed(done, "val")
    times = [r.step_ms for r in done if r.step_ms is not None]
    peaks = [r.peak_bytes for r in done if not record.on_cpu(r.device)]
    remarks = []
    if steps := sorted(r.steps for r in results if r.status == "diverged"):
        remarks.append(f"{len(steps)} diverged at step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))}")
    if collapsed := {r.seed for r in done if r.collapsed}:
        living = [value for seed, value in scores.items() if seed not in collapsed]
        remarks.append(f"collapsed {len(collapsed)}/{len(scores)}" + (f", others {mean(living):.2f}" if living else ""))
    seeds = Counter(r.seed for r in results)
    remarks += [f"{count} different results of seed {seed}" for seed, count in sorted(seeds.items()) if count > 1]
    phases = [r.pretrain for r in results if r.pretrain]
    facts = {
        "steps": joined(r.steps for r in done),
        "pretrained": _pretrained(phases) if phases else "",
        "git": joined(r.git or "unknown" for r in results),
        "data": joined(r.data or "the official" for r in results) if any(r.data for r in results) else "",
    }
    first, lost = results[0], len(results) - len(done)
    cell = score(scores, lost, collapsed)
    link = f"run-{first.study}-{first.task}-{first.label}"
    return Row(
        study=first.study,
        task=first.task,
        label=first.label,
        done=done,
        scores=scores,
        collapsed=collapsed,
        cell=replace(cell, link=link, note="; ".join(filter(None, [cell.note, facts["pretrained"]]))),
        test=cell.value,
        n=len(scores),
        lost=lost,
        remarks=remarks,
        dev=mean(devs.values()) if devs else None,
        ms=median(times) if times else None,
        peak=median(peaks) if peaks and None not in peaks else None,
        objective=first.pretrain.objective if first.pretrain else "",
        facts=facts | {key: joined(getattr(r, key) for r in results) for key in FACTS if key not in facts},
        runs=runs,
    )


def _by_seed(done: list[RunRecord], name: str) -> dict[int, float]:
    """A score of each finished seed, the mean of its different results."""
    found = defaultdict(list)
    for r in done:
        found[r.seed].append(getattr(r, name))
    return {seed: mean(values) for seed, values in found.items()}


def _pretrained(phases: list[Pretraining]) -> str:
    """Objective, steps, and means of tokens and time of phase one over the seeds."""
    times = [phase.steps * phase.step_ms / 1000 for phase in phases if phase.step_ms is not None]
    time = f", {mean(times):.3g} s" if times else ""
    what, steps = joined(phase.objective for phase in phases), joined(phase.steps for phase in phases)
    return f"pretrained ({what}) {steps} steps, {mean(phase.tokens for phase in phases) / 1e6:.3g} M tokens{time}"
