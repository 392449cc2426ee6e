"""Lines of the Arena's table: the runs of each mechanism at the papers' budget."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

from ..config.compose import compose
from ..config.experiment import Experiment
from ..console import plural, spread_text
from ..evaluate import record as fresh_record
from ..evaluate.record import FreshTest
from ..io import typed_json
from ..results import outcome_statistics, paper_values
from ..results.lr_search import BOARD, SEARCH_SUFFIX
from ..results.statistics import welch_interval
from ..results.summary import Row, Studies
from ..results.table import Cell
from ..runs import checkpoint
from ..runs.reader import CONTROL, read_choices

# The longer training of ListOps that the authors of CURformer released, ``experiment=curformer_listops``.
LONGER = "longer training"
# The encoder of Nystromformer and CURformer, for which the papers print most values of single mechanisms.
TWO_LAYERS = "2 layers, d 64"


class Training(NamedTuple):
    """Length and learning rate of a training; None if its configuration is not known."""

    steps: int | None
    batch: int | None
    lr: float | None


@dataclass(frozen=True)
class ArenaEntry:
    """One line of the Arena's table.

    Args:
        name: name of the line; the label, with what differs from the usual training: the encoder, "longer training".
        row: runs of the mechanism.
        control: runs of the control in the same study with the same encoder, steps, batch and learning rate; None
            without any.
        fresh: fresh-test results by seed.
        control_fresh: the same of the control; empty without a control.
    """

    name: str
    row: Row
    control: Row | None
    fresh: dict[int, FreshTest]
    control_fresh: dict[int, FreshTest]

    @property
    def is_control(self) -> bool:
        """Whether the line is the control itself."""
        return self.control is self.row


def entries(studies: Studies) -> dict[str, list[ArenaEntry]]:
    """Choose the runs of the table: those at the papers' budget, for each line the study with the most seeds.

    Args:
        studies: rows of each study.

    Returns:
        The entries of each task of the benchmark that has a finished run, the highest score first: on fresh examples
        if all entries have been scored on the same ones, otherwise the test score.
    """
    rows = arena_rows(studies)
    # Candidates for each line, and the number of seeds of each study.
    candidates: dict[tuple[str, str], list[Row]] = defaultdict(list)
    controls: dict[tuple[str, str, str, Training], Row] = {}
    num_seeds: dict[str, int] = defaultdict(int)
    for row in rows:
        candidates[row.task, line_name(row)].append(row)
        num_seeds[row.study] += row.n
        training = training_of_row(row)
        if row.label in (CONTROL, f"{CONTROL}-optim.lr={training.lr}"):
            controls[control_key(row)] = row

    def rank(row: Row) -> tuple[int, int, str]:
        # With the same number of seeds of a mechanism, the study with more seeds in all counts.
        return row.n, num_seeds[row.study], row.study

    # The best candidate of each line, tasks in the order of the benchmark.
    controls_fresh = {key: fresh_results(row) for key, row in controls.items()}
    by_task: dict[str, list[ArenaEntry]] = defaultdict(list)
    for (task, name), named_rows in candidates.items():
        row = max(named_rows, key=rank)
        key = control_key(row)
        entry = ArenaEntry(name, row, controls.get(key), fresh_results(row), controls_fresh.get(key, {}))
        by_task[task].append(entry)

    return {task: ordered(by_task[task]) for task in paper_values.TASKS if task in by_task}


def ordered(lines: list[ArenaEntry]) -> list[ArenaEntry]:
    """Sort the entries of a task by their scores, see ``entries``."""
    digests = {result.data for entry in lines for result in entry.fresh.values()}
    if len(digests) == 1 and all(entry.fresh for entry in lines):
        return sorted(lines, key=lambda entry: -mean(result.fresh_test for result in entry.fresh.values()))
    return sorted(lines, key=lambda entry: -(entry.row.test or 0.0))


def control_key(row: Row) -> tuple[str, str, str, Training]:
    """What a mechanism and its control share: study, task, encoder, and length and learning rate of the training."""
    encoder = encoder_of(read_choices(next(iter(row.runs))))
    return row.study, row.task, encoder, training_of_row(row)


def training_of_row(row: Row) -> Training:
    """Length and learning rate of the runs of a row, which share their settings."""
    choices = read_choices(next(iter(row.runs)))
    return Training(choices.get("optim.steps"), choices.get("optim.batch"), choices.get("optim.lr"))


@cache
def composed_training(*overrides: str) -> Training:
    """Length and learning rate of a command at the papers' budget."""
    optim = compose(Experiment, [*overrides, f"attn={CONTROL}", "budget=paper"]).optim
    return Training(optim.steps, optim.batch, optim.lr)


def arena_rows(studies: Studies) -> list[Row]:
    """List the rows of all studies that belong to the Arena's table."""
    rows = itertools.chain.from_iterable(studies.values())
    return [row for row in rows if is_arena_row(row)]


def line_name(row: Row) -> str:
    """Name the line of a row: its label and, in parentheses, encoder and training as far as they are not the usual."""
    remarks = []
    encoder = encoder_of(read_choices(next(iter(row.runs))))
    if encoder != TWO_LAYERS:
        remarks.append(encoder)
    remarks += training_remarks(row)
    return f"{row.label} ({'; '.join(remarks)})" if remarks else row.label


def training_remarks(row: Row) -> list[str]:
    """Name what differs from the usual training of a task, except a learning rate that the label names."""
    training = training_of_row(row)
    usual = composed_training(f"task={row.task}")
    if training.steps is None or training.lr is None or training == usual:
        return []
    if row.task == "listops" and training == composed_training("experiment=curformer_listops"):
        return [LONGER]
    remarks = []
    if (training.steps, training.batch) != (usual.steps, usual.batch):
        remarks.append(f"{training.steps:,} steps of {training.batch}")
    if training.lr != usual.lr and "optim.lr=" not in row.label:
        remarks.append(f"learning rate {training.lr:g}")
    return remarks


def encoder_of(choices: Mapping[str, Any]) -> str:
    """Describe the size of a model: "6 layers, d 128".

    Args:
        choices: flat choices of a run; records without a configuration have the two-layer encoder.
    """
    if "model.layers" not in choices:
        return TWO_LAYERS
    return f"{plural(choices['model.layers'], 'layer')}, d {choices['model.dim']}"


def is_arena_row(row: Row) -> bool:
    """Whether runs are in the Arena's table: a task at the papers' budget, from scratch, outside board and searches."""
    at_papers_budget = row.facts["protocol"] == "paper" and row.facts["budget"] == "paper"
    has_searched_rate = row.study == BOARD or row.study.endswith(SEARCH_SUFFIX)
    is_from_scratch = not row.objective
    has_scores = bool(row.scores)
    is_benchmark = row.task in paper_values.TASKS and row.facts["metric"] == "accuracy"
    return is_benchmark and at_papers_budget and has_scores and is_from_scratch and not has_searched_rate


def fresh_results(row: Row) -> dict[int, FreshTest]:
    """Read the fresh-test results of runs by seed; of several sets of fresh examples, only the largest one counts."""
    results = {}
    tables: dict[Path, list[FreshTest]] = {}
    for folder, run_record in row.runs.items():
        # A run of this machine has its own file, a published study has one table.
        path = folder / fresh_record.NAME
        if path.exists():
            # The record lists the checksum of best.ckpt, if any: a result of other weights does not count.
            result = fresh_record.load(path)
            is_current = typed_json.recorded_digest(folder / checkpoint.BEST) in (None, result.weights)
            candidates = [result] if is_current else []
        else:
            study = Path(*folder.parts[:-3])
            if study not in tables:
                tables[study] = fresh_record.read_table(study)
            candidates = tables[study]
        for result in candidates:
            if result.fingerprint == run_record.fingerprint:
                results[run_record.seed] = result

    # Results on different examples are not comparable.
    digests = {result.data for result in results.values()}
    if len(digests) > 1:
        largest = max(results.values(), key=lambda result: result.examples)
        results = {seed: result for seed, result in results.items() if result.data == largest.data}
    return results


def fresh_cell(results: Mapping[int, FreshTest], num_seeds: int) -> Cell:
    """Make the cell of the fresh test, with the number of seeds if not all of them are scored.

    Args:
        results: fresh-test results by seed.
        num_seeds: number of finished seeds.
    """
    if not results:
        return Cell(text="-")
    is_correct = outcomes(results)  # (seeds, examples)
    score = 100 * float(is_correct.mean())
    error = outcome_statistics.standard_error(is_correct)
    text = f"{score:.2f} ± {error:.2f}"
    if len(is_correct) < num_seeds:
        text += f" (n = {len(is_correct)})"
    return Cell(text=text, value=score, std=error, n=len(is_correct))


def score_text(row: Row) -> str:
    """Format the test score of runs: 36.02 ± 0.31, with the number of collapsed seeds."""
    values = list(row.scores.values())
    text = spread_text(values)
    if row.collapsed:
        text += f" (collapsed {len(row.collapsed)}/{len(values)})"
    return text


def seeds_text(num_finished: int, num_failed: int) -> str:
    """Format a number of finished seeds, with the number of failed ones: "4 (+1)"."""
    return f"{num_finished} (+{num_failed})" if num_failed else str(num_finished)


def outcomes(results: Mapping[int, FreshTest]) -> np.ndarray:
    """Outcomes (seeds, examples) on the fresh examples."""
    return np.array([results[seed].is_correct() for seed in sorted(results)], float)


def gains_are_fresh(lines: Iterable[ArenaEntry]) -> bool:
    """Whether all mechanisms that have a control, and their controls, are scored on the same fresh examples."""
    digests = set()
    for entry in lines:
        if entry.control is None:
            continue
        if not entry.fresh or not entry.control_fresh:
            return False
        for result in (*entry.fresh.values(), *entry.control_fresh.values()):
            digests.add(result.data)
    return len(digests) == 1


def gain_cell(entry: ArenaEntry, *, is_fresh: bool) -> Cell:
    """Make the cell of the gain over the control; "-" for the control itself or without one.

    Args:
        entry: a line of the table.
        is_fresh: whether the gain is on the fresh examples, see ``gains_are_fresh``, or on the standard test set.
    """
    if entry.control is None or entry.is_control:
        return Cell(text="-")
    if not is_fresh:
        return difference_cell(entry.row.scores, entry.control.scores)
    gain = outcome_statistics.difference(outcomes(entry.fresh), outcomes(entry.control_fresh))
    return interval_cell(gain.value, gain.low, gain.high)


def difference_cell(scores: Mapping[int, float], others: Mapping[int, float]) -> Cell:
    """Make the cell of a difference of means, with Welch's interval if both sides have two seeds or more.

    Args:
        scores, others: scores by seed.
    """
    values = list(scores.values())
    other_values = list(others.values())
    low: float | None = None
    high: float | None = None
    if min(len(values), len(other_values)) > 1:
        low, high = welch_interval(values, other_values) or (None, None)
    return interval_cell(mean(values) - mean(other_values), low, high)


def interval_cell(difference: float, low: float | None, high: float | None) -> Cell:
    """Make the cell of a difference with its 95 % interval, which needs two seeds on both sides."""
    text = f"{difference:+.1f}"
    if low is None or high is None:
        return Cell(text=text, value=difference, note="an interval needs two seeds on both sides and some variance")
    return Cell(text=f"{text} ({low:+.1f} to {high:+.1f})", value=difference, low=low, high=high)
