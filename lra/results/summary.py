"""Rows: the results of each mechanism on each task, from the records of a study."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

from ..runs import reader, record
from ..runs.record import Pretraining, RunRecord
from . import paper_values
from .paper_values import PrintedValue
from .score_cells import remarks, score
from .table import Cell, joined

# Facts about runs. A table states a fact once if its rows agree on it, else in the details of each row.
FACTS = {
    "protocol": "protocol {}",
    "budget": "budget {}",
    "metric": "{}",
    "n_test": "{} test examples",
    "steps": "{} steps",
    "pretrained": "{}",
    "device": "{}",
    "git": "commit {}",
    "data": "data from a file other than the official one ({})",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """All seeds of one mechanism on one task of a study.

    Args:
        study, task, label: identity of the row; the label names the mechanism and its changed options.
        done: records of the finished seeds.
        scores: test score of each finished seed, in percent.
        collapsed: seeds that give every validation example the same answer.
        cell: the scores as a table cell, linked to the runs.
        test, val: mean scores over finished seeds, in percent; None without any.
        n: number of finished seeds.
        num_failed: number of diverged seeds without a finished run.
        remarks: diverged and collapsed seeds, seeds with several results or with different options.
        ms, ms_device: median milliseconds per step on the device with most runs of the task, and its ``device_name``.
        peak: median peak memory in bytes on that device; None on a CPU, where it is the memory of the whole process.
        objective: objective of pretraining; "" without.
        facts: values of FACTS shared by the seeds, or all values joined by " / ".
        runs: records by run directory.
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
    num_failed: int
    remarks: list[str]
    val: float | None
    ms: float | None
    ms_device: str
    peak: float | None
    objective: str
    facts: dict[str, str]
    runs: dict[Path, RunRecord]

    @property
    def published(self) -> list[PrintedValue]:
        """The accuracies printed for the label on the task; none if a run used other data or another metric."""
        is_comparable = not self.facts["data"] and self.facts["metric"] == "accuracy"
        return paper_values.accuracies(self.label, [self.task]) if is_comparable else []

    @property
    def chance(self) -> float:
        """The chance level in percent: the highest ``floor`` of the records, or ``constant_baseline`` without one."""
        return max(r.constant_baseline if r.floor is None else r.floor for r in self.runs.values())

    @property
    def tokens(self) -> float | None:
        """Mean number of tokens of all phases over finished seeds; None without one, or if a record lacks it."""
        if not self.done or any(r.tokens is None for r in self.done):
            return None
        # Pretraining counts too.
        totals = [sum(phase.tokens or 0 for phase in phases(r)) for r in self.done]
        return mean(totals)

    @property
    def cost(self) -> str:
        """Tokens of each phase and the time of all steps: "3.1 + 3.2 M tokens, 41 s"; "" without tokens."""
        if self.tokens is None:
            return ""
        # Tokens of each phase in millions, averaged over seeds.
        tokens = []
        for same_phase in zip(*map(phases, self.done), strict=True):
            millions = mean(phase.tokens or 0 for phase in same_phase) / 1e6
            tokens.append(f"{millions:.3g}")
        text = f"{' + '.join(tokens)} M tokens"
        # The time of the runs on the device of ``ms``, only if every phase has it.
        timed = [r for r in self.done if r.device_name == self.ms_device]
        if not timed:
            return text
        milliseconds = 0.0
        for r in timed:
            for phase in phases(r):
                if phase.step_ms is None:
                    return text
                milliseconds += phase.steps * phase.step_ms
        seconds = milliseconds / 1000 / len(timed)
        return f"{text}, {seconds:.3g} s"


# Rows of each study by its name.
Studies = dict[str, list[Row]]


def phases(r: RunRecord) -> list[Pretraining | RunRecord]:
    """List the phases of a run: pretraining, if it has any, and training."""
    return [r.pretrain, r] if r.pretrain else [r]


def collect(runs: Path, study: str | None = None, further: Sequence[Path] = ()) -> tuple[Studies, list[str]]:
    """Summarise the records below a folder.

    Args:
        runs: folder of the runs.
        study: name of the only study to read; None for all.
        further: folders of other studies, whose records join the records of the study of the same name.

    Returns:
        The rows of each study, the studies of ``runs`` first, and the messages of ``reader.scan``.

    Raises:
        ValueError: ``runs`` is not a folder or has no record, or there is no study of this name.
    """
    if not runs.is_dir():
        raise ValueError(f"{runs} is not a folder; name the folder of the runs with runs=<folder>")
    records, messages = reader.scan(runs)
    # The studies of the folder itself come first, then the further ones.
    first_studies = {r.study for r in records.values()}
    for folder in further:
        further_records, further_messages = reader.scan(folder)
        records |= further_records
        messages += further_messages
    if not records:
        details = ""
        if messages:
            details = f" that can be read ({'; '.join(messages)})"
        raise ValueError(f"{runs} has no record of a training run{details}; lra train makes them")

    # Study -> (task, label) -> run directory -> record.
    groups: dict[str, dict[tuple[str, str], dict[Path, RunRecord]]] = defaultdict(lambda: defaultdict(dict))
    for folder, r in records.items():
        groups[r.study][r.task, r.label][folder] = r
    if study is not None and study not in groups:
        existing = ", ".join(sorted(groups))
        raise ValueError(f"no study {study!r} in {runs}; its studies are {existing}")

    names = sorted(groups, key=lambda name: (name not in first_studies, name))
    studies = {}
    for name in names:
        if study is None or study == name:
            studies[name] = _summarise_study(groups[name])
    return studies, messages


def _summarise_study(by_mechanism: dict[tuple[str, str], dict[Path, RunRecord]]) -> list[Row]:
    """Summarise the records of a study by (task, label), tasks in the order of the benchmark."""
    # The number of finished runs on each device, by task.
    devices: dict[str, Counter[str]] = defaultdict(Counter)
    for (task, _), runs in by_mechanism.items():
        devices[task].update(r.device for r in runs.values() if r.status == "done")
    keys = sorted(by_mechanism, key=lambda key: (paper_values.task_order(key[0]), key[1]))
    rows = []
    for task, label in keys:
        rows.append(_summarise(by_mechanism[task, label], devices[task]))
    return rows


def common_device(records: Sequence[RunRecord], counts: Mapping[str, int]) -> str:
    """Return the device of records on which most runs of their table ended; of equal counts, the last in the alphabet.

    Args:
        records: records of at least one run.
        counts: number of runs on each device.
    """
    devices = {r.device for r in records}
    return max(devices, key=lambda name: (counts[name], name))


def step_time(records: Sequence[RunRecord], device: str) -> float | None:
    """Return the median milliseconds per training step of the runs on a device; None if none has a time."""
    times = [r.step_ms for r in records if r.device == device and r.step_ms is not None]
    return median(times) if times else None


def _summarise(runs: dict[Path, RunRecord], devices: Mapping[str, int]) -> Row:
    """Summarise the records of one study, task and label; several copies of a result count once."""
    runs = _without_copies(runs)
    results = list(runs.values())
    done = [r for r in results if r.status == "done"]
    device = common_device(done, devices) if done else None

    # Scores of the finished seeds.
    scores = _by_seed(done, "test")
    val_scores = _by_seed(done, "val")
    collapsed = {r.seed for r in done if r.collapsed}
    num_failed = len({r.seed for r in results} - scores.keys())

    # The cell links to the runs in the page.
    first = results[0]
    facts = _facts(results, done)
    cell = score(scores, num_failed, collapsed)
    notes = [note for note in (cell.note, facts["pretrained"]) if note]
    link = f"run-{first.study}/{first.task}/{first.label}"
    return Row(
        study=first.study,
        task=first.task,
        label=first.label,
        done=done,
        scores=scores,
        collapsed=collapsed,
        cell=replace(cell, link=link, note="; ".join(notes)),
        test=cell.value,
        n=len(scores),
        num_failed=num_failed,
        remarks=[*remarks(results, scores, collapsed), *reader.differing_choices(runs)],
        val=mean(val_scores.values()) if val_scores else None,
        ms=step_time(done, device) if device else None,
        ms_device=joined(r.device_name for r in done if r.device == device),
        peak=_peak([r for r in done if r.device == device]),
        objective=first.pretrain.objective if first.pretrain else "",
        facts=facts,
        runs=runs,
    )


def _without_copies(runs: dict[Path, RunRecord]) -> dict[Path, RunRecord]:
    """Keep the last run directory of each result, in the order of the seeds."""
    # A published copy has the same seed, fingerprint and score as its source.
    folder_of = {}
    for folder, r in runs.items():
        result = (r.seed, r.fingerprint, r.status, r.test)
        folder_of[result] = folder
    folders = sorted(folder_of.values(), key=lambda folder: runs[folder].seed)
    return {folder: runs[folder] for folder in folders}


def _by_seed(done: list[RunRecord], name: str) -> dict[int, float]:
    """Return a score of each finished seed, averaged if a seed has different results."""
    # The same seed on another machine may give another score.
    values: dict[int, list[float]] = defaultdict(list)
    for r in done:
        values[r.seed].append(getattr(r, name))
    return {seed: mean(results) for seed, results in values.items()}


def _peak(done: list[RunRecord]) -> float | None:
    """Return the median peak memory of the runs on a GPU; None without any, or if the peak of one is unknown."""
    on_gpu = [r for r in done if not record.on_cpu(r.device)]
    peaks = [r.peak_bytes for r in on_gpu if r.peak_bytes is not None]
    if not peaks or len(peaks) < len(on_gpu):
        return None
    return median(peaks)


def _facts(results: list[RunRecord], done: list[RunRecord]) -> dict[str, str]:
    """Collect the values of FACTS."""
    facts = {}
    for key in ("protocol", "budget", "metric", "n_test"):
        values = [getattr(r, key) for r in results]
        facts[key] = joined(values)
    # A diverged run has fewer steps, which is not a setting.
    facts["steps"] = joined(r.steps for r in done)
    pretrainings = [r.pretrain for r in results if r.pretrain]
    facts["pretrained"] = _pretrained(pretrainings)
    facts["device"] = joined(r.device_name for r in results)
    facts["git"] = joined(r.git or "unknown" for r in results)
    # An empty value stands for the official data of all runs.
    files = [r.data or "the official" for r in results]
    is_official = not any(r.data for r in results)
    facts["data"] = "" if is_official else joined(files)
    return facts


def _pretrained(pretrainings: list[Pretraining]) -> str:
    """Describe the pretraining of all seeds: objective, steps, and mean tokens and time; "" without any."""
    if not pretrainings:
        return ""
    objectives = joined(pretraining.objective for pretraining in pretrainings)
    steps = joined(pretraining.steps for pretraining in pretrainings)
    millions = mean(pretraining.tokens for pretraining in pretrainings) / 1e6
    text = f"pretrained ({objectives}) {steps} steps, {millions:.3g} M tokens"
    seconds = [phase.steps * phase.step_ms / 1000 for phase in pretrainings if phase.step_ms is not None]
    if seconds:
        text += f", {mean(seconds):.3g} s"
    return text
