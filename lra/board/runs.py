"""Sweeps with a learning-rate search: for every mechanism and task a search, then seeds at the chosen rate.

Everything is read from the run directories and the published runs, so that any process on any machine may resume the
sweep at any time. The search has the study ``<study>-rates`` and the rate in its labels, the final seeds the study.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ..config.compose import compose, mechanism_overrides
from ..config.experiment import Experiment
from ..config.quoting import override
from ..console import log, plural
from ..data import token_baselines
from ..data.store import StoreError
from ..results.lr_search import SEARCH_SUFFIX
from ..runs import config_file, published, record
from ..runs.reader import SeedDirs, warn_of_missing_files
from ..runs.run_dir import check_choices
from ..sweep.estimate import Estimates
from ..sweep.options import SweepOptions
from ..sweep.plan import PlannedRun, disk, duration, plan_seeds, study
from ..sweep.progress import state
from ..train.baselines import baselines_of
from .duplicates import find_duplicates
from .search import Entry, check_distinct, decide, label_keys

# Runs per worker that are launched together, so that few workers wait for the last ones.
ROUND = 8


class Progress(NamedTuple):
    """The runs that are left of one mechanism on one task.

    Args:
        left: runs that can start now.
        rate: the chosen learning rate; None while the search continues.
        rates_done: number of rates whose runs have ended.
        foreign: published runs of another configuration with the paths of these runs, and what differs.
    """

    left: list[PlannedRun]
    rate: float | None
    rates_done: int
    foreign: dict[Path, str]


class Board:
    """The runs of a sweep with a learning-rate search, such as sweep=board, each of one CPU thread.

    Args:
        options: options of the sweep.
        at_once: number of runs at once, None if a cluster decides.

    Raises:
        ValueError: no mechanism gives a run, or the options of one are wrong.
    """

    def __init__(self, options: SweepOptions, at_once: int | None):
        # Only a sweep with a search names this class as its planner.
        assert options.sweep.search is not None
        self.options = options
        self.search = options.sweep.search
        self.at_once = at_once
        self.skipped: list[str] = []
        self.estimates = Estimates(options.runs, options.measure)
        self.checked_dirs: set[Path] = set()
        # Published runs of the search and of the final seeds.
        self.published: dict[Path, published.Published] = {}
        for name in (study(options), f"{study(options)}{SEARCH_SUFFIX}"):
            self.published |= published.below(published.HOME / name)

        # A mechanism on the command line, with its options, replaces the list of the sweep.
        arguments = mechanism_overrides(options.command_overrides)
        if arguments:
            text = " ".join(arguments)
            self.mechanisms = [text.removeprefix("attn=")]
        else:
            self.mechanisms = list(dict.fromkeys(options.mechanisms))
        self.entries: list[Entry] = []
        for mechanism, recipe in itertools.product(self.mechanisms, options.tasks):
            overrides, composed = self._compose_run(mechanism, recipe)
            try:
                self.entries.append(self._entry(mechanism, recipe, overrides, composed))
            except ValueError as error:
                self.skipped.append(f"{recipe} {mechanism}: {error}")
        if not self.entries:
            raise ValueError(self.skipped[0] if self.skipped else "mechanisms must be names of conf/attn, not []")
        # Drop duplicates; a line describes each.
        self.duplicates: list[str] = []
        for recipe in options.tasks:
            self.duplicates += self._drop_duplicates(recipe)
        check_distinct(self.entries)

    def _entry(self, mechanism: str, recipe: str, overrides: list[str], experiment: Experiment) -> Entry:
        """Plan one mechanism on one task; raise ValueError if it cannot run on this machine or on this task."""
        if experiment.unavailable is not None:
            raise ValueError(experiment.unavailable)
        (run,), choices = plan_seeds(experiment, overrides, self.estimates)
        run = replace(run, overrides=tuple(overrides))
        return Entry(mechanism=mechanism, recipe=recipe, run=run, choices=choices, experiment=experiment)

    def _compose_run(self, mechanism: str, recipe: str) -> tuple[list[str], Experiment]:
        """Compose the overrides of ``lra.train`` for a mechanism on a task, and its experiment."""
        options = self.options
        attn, *mechanism_options = mechanism.split()
        overrides = [f"experiment={recipe}", f"attn={attn}", *mechanism_options]
        shared = [line for line in options.command_overrides if line.startswith(("budget=", "protocol=", "protocol."))]
        # budget=paper and protocol=paper, the defaults of conf/sweep.yaml, leave the experiment's own values.
        overrides += [line for line in shared if line not in ("budget=paper", "protocol=paper")]
        overrides += [override("runs", options.runs), "trainer.threads=1", *options.overrides]
        # A placeholder run of seed 0; ``Entry.at`` replaces its study, label and seed.
        keys = ",".join(label_keys(mechanism))
        study_override = override("study", study(options))
        names = [study_override, f"label_keys=[{keys}]", "seeds=[0]"]
        return overrides, compose(Experiment, [*overrides, *names])

    def _drop_duplicates(self, recipe: str) -> list[str]:
        """Drop each mechanism that computes the same function as an earlier one or sdpa; return a line for each.

        Mechanisms with different options outside attn are not compared.
        """
        # Group the mechanisms of the task by their options outside attn.
        groups: dict[tuple[str, ...], dict[str, Experiment]] = {}
        for entry in self.entries:
            if entry.recipe == recipe:
                _, *options = entry.mechanism.split()
                other_options = tuple(line for line in options if not line.startswith("attn."))
                group = groups.setdefault(other_options, {})
                group[entry.mechanism] = entry.experiment
        # Exact attention is compared first, whether it is in the sweep or not.
        if () in groups:
            plain_group = groups[()]
            sdpa = plain_group.get("sdpa")
            if sdpa is None:
                _, sdpa = self._compose_run("sdpa", recipe)
            groups[()] = {"sdpa": sdpa} | plain_group

        lines: list[str] = []
        for group in groups.values():
            duplicates = find_duplicates(group) if len(group) > 1 else {}
            for mechanism, first in duplicates.items():
                duplicate = (mechanism, recipe)
                self.entries = [entry for entry in self.entries if (entry.mechanism, entry.recipe) != duplicate]
                lines.append(f"{mechanism} on {recipe}: skipped, computes the same as {first}")
        return lines

    def result(self, entry: Entry, run: PlannedRun, rate: float) -> record.RunRecord | None:
        """Read the record of a run that has ended on this machine or is published; None without one.

        A published run of another configuration does not count.

        Raises:
            ValueError: the run directory has another configuration, or another version of a custom class.
        """
        # A run of this machine, whose configuration is checked once.
        if state(run) in ("done", "diverged"):
            if run.folder not in self.checked_dirs:
                check_choices(run.folder, entry.choices_at(rate))
                SeedDirs(run.folder.parent).check_custom_code(entry.choices)
                warn_of_missing_files(run.folder)
                self.checked_dirs.add(run.folder)
            return record.load(run.folder / record.NAME)
        other = self.published.get(self._published_path(run))
        if other is None:
            return None
        choices = entry.choices_at(rate) | {"seed": run.seed}
        same_choices = other.record.fingerprint == config_file.fingerprint(choices)
        return other.record if same_choices else None

    def _published_path(self, run: PlannedRun) -> Path:
        return published.HOME / run.folder.relative_to(self.options.runs)

    def progress(self, entry: Entry) -> Progress:
        """Find what is left of one mechanism on one task.

        Raises:
            ValueError: a run directory has another configuration, or another version of a custom class.
        """
        # Search: the validation score at each rate whose run has ended, None where it diverged or collapsed.
        search = self.search
        trials = {}
        for rate in (*search.rates, *search.further):
            trials[rate] = entry.at(rate, search.seed, search=True)
        scores: dict[float, float | None] = {}
        examples: list[int] = []
        for rate, run in trials.items():
            result = self.result(entry, run, rate)
            if result is not None:
                has_failed = result.status == "diverged" or result.collapsed
                scores[rate] = None if has_failed else result.val
                examples.append(result.n_val)
        num_examples = min(examples, default=1)
        rates, best_rate = decide(scores, search.rates, search.further, examples=num_examples)
        if best_rate is None:
            left = {trials[rate]: rate for rate in rates}
        else:
            # Final seeds: the ones at the best rate that have no result yet.
            final_runs = [entry.at(best_rate, seed, search=False) for seed in self.options.seeds]
            left = {run: best_rate for run in final_runs if self.result(entry, run, best_rate) is None}

        # If a run is left although one is published under its path, the published run has other choices.
        foreign: dict[Path, str] = {}
        for run, rate in left.items():
            path = self._published_path(run)
            if path in self.published:
                foreign[path] = config_file.difference(self.published[path].choices, entry.choices_at(rate))
        return Progress(list(left), best_rate, len(scores), foreign)

    def rounds(self) -> Iterator[list[PlannedRun]]:
        """Yield the runs to launch next, mechanism by mechanism, until none is left.

        A round takes mechanisms in their order until each worker has ``ROUND`` runs. A run that fails is not yielded
        again.
        """
        launched: set[Path] = set()
        self._fit_token_baselines()
        while True:
            runs: list[PlannedRun] = []
            for _, entries in itertools.groupby(self.entries, key=lambda entry: entry.mechanism):
                left: list[PlannedRun] = []
                for entry in entries:
                    progress = self.progress(entry)
                    left += [run for run in progress.left if run.folder not in launched]
                # Runs of the search, recognised by its seed, come first: the final seeds of the task wait for them.
                runs += sorted(left, key=lambda run: run.seed != self.search.seed)
                if self.at_once and len(runs) >= ROUND * self.at_once:
                    break
            if not runs:
                return
            launched |= {run.folder for run in runs}
            yield runs

    def _fit_token_baselines(self) -> None:
        """Fit the missing bag-of-tokens baselines of tasks with runs left, so that their records have its score."""
        experiments = {entry.recipe: entry.experiment for entry in self.entries if self.progress(entry).left}
        for recipe, experiment in experiments.items():
            task = experiment.task
            # Tasks with float features have no bag-of-tokens baseline.
            if task.vocab is None:
                continue
            path = token_baselines.path(experiment.task_data(), task.metric)
            if token_baselines.read(path) is None:
                try:
                    baselines_of(experiment)
                except StoreError as error:
                    log(f"{recipe}: no bag-of-tokens baseline, {error}")

    def describe(self) -> Iterable[str]:
        """Describe in lines what is finished and what is left, its time and its disk space."""
        options = self.options
        search = self.search
        study_name = study(options)
        lines: list[str] = []
        left: list[PlannedRun] = []
        foreign: dict[Path, str] = {}
        # A line for each mechanism and task.
        for entry in self.entries:
            progress = self.progress(entry)
            foreign |= progress.foreign
            remaining = list(progress.left)
            if progress.rate is None:
                # The final seeds count for the estimate, whatever their rate will be.
                remaining += [entry.at(0.0, seed, search=False) for seed in options.seeds]
                rates = f"{progress.rates_done} rates done, {len(progress.left)} left"
                seeds_done = 0
            else:
                rates = f"{progress.rates_done} rates done, {progress.rate} chosen"
                seeds_done = len(options.seeds) - len(progress.left)
            left += remaining
            time_left = f"; time left {duration(remaining)}" if remaining else ""
            seeds = f"{seeds_done} of {len(options.seeds)} seeds done"
            lines.append(f"  {entry.run.label} {entry.recipe}: {rates}; {seeds}{time_left}")
        # Runs of the search have another study, the third folder above the run directory.
        trials = [run for run in left if run.folder.parents[2].name != study_name]
        mechanisms = plural(len(self.mechanisms), "mechanism")
        tasks = plural(len(options.tasks), "task")
        yield (
            f"{study_name}: {mechanisms} on {tasks} in {options.runs / study_name} and {study_name}{SEARCH_SUFFIX}; "
            f"rates {', '.join(map(str, search.rates))} with seed {search.seed}, then seeds "
            f"{', '.join(map(str, options.seeds))}"
        )
        yield from lines
        yield from (f"  {line}" for line in self.duplicates)
        if foreign:
            path, difference = next(iter(foreign.items()))
            yield (
                f"  published runs of another configuration, which do not count: {len(foreign)}, such as "
                f"{path.relative_to(published.HOME)} ({difference})"
            )
        if left:
            trial_runs = plural(len(trials), "run")
            yield (
                f"  left: {trial_runs} for the rates and {len(left) - len(trials)} at the chosen ones, more if a "
                f"search goes beyond its grid; time one after the other: {duration(left, self.at_once)}"
            )
            yield disk(left, options)
