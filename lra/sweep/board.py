"""sweep=board: for every mechanism and task a search over learning rates, then seeds at the chosen rate.

Everything is read from the folders of the runs and from the published runs, so that any process on any machine may go
on at any time. Phase one has the study ``<study>-rates`` and the rate in its labels, phase two has the study itself.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..config.compose import compose
from ..config.compose import mechanism as chosen
from ..config.experiment import Experiment
from ..config.quoting import override
from ..console import log
from ..data import bag
from ..data.store import StoreError
from ..runs import identity, record, tables
from ..runs.folder import settle
from ..train.floors import floors_of
from .aliases import aliases
from .estimate import Estimates
from .options import SweepOptions
from .plan import PlannedRun, disk, duration, planned, study
from .progress import state
from .search import decide

ROUND = 8  # runs for each worker that are launched together, so that few workers wait for the last ones


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One mechanism on one task.

    Args:
        mechanism: name of conf/attn with options of lra.train.
        experiment: name of conf/experiment.
        run: seed of phase two without a rate.
        choices: choices of the run, see ``Experiment.choices``.
        options: options of the run.
    """

    mechanism: str
    experiment: str
    run: PlannedRun
    choices: dict[str, Any]
    options: Experiment

    def at(self, rate: float, seed: int, *, search: bool) -> PlannedRun:
        """The run of a seed at a rate, in phase one if ``search``, else in phase two."""
        home, label, keys = self.run.folder.parents[2], self.run.label, label_keys(self.mechanism)
        if search:
            home, label, keys = home.with_name(f"{home.name}-rates"), f"{label}-optim.lr={rate}", (*keys, "optim.lr")
        words = (override("study", home.name), f"label_keys=[{','.join(keys)}]", f"optim.lr={rate}", f"seeds=[{seed}]")
        return replace(
            self.run,
            overrides=(*self.run.overrides, *words),
            label=label,
            seed=seed,
            folder=home / self.run.task / label / f"seed-{seed}",
        )


class Board:
    """The runs of sweep=board, each of one CPU thread.

    Args:
        options: options of the sweep.
        at_once: number of runs at once, None if a cluster decides.

    Raises:
        ValueError: no mechanism gives a run, or the options of one are wrong.
    """

    def __init__(self, options: SweepOptions, at_once: int | None):
        self.options, self.at_once = options, at_once
        self.skipped: list[str] = []
        self.estimates = Estimates(options.runs, options.measure)
        self.settled: set[Path] = set()
        homes = (study(options), f"{study(options)}-rates")
        self.published = {path: run for name in homes for path, run in tables.below(tables.HOME / name).items()}
        self.foreign: dict[Path, str] = {}  # published runs of another configuration, with what differs
        own = chosen(options.command_overrides)
        self.mechanisms = [" ".join(own).removeprefix("attn=")] if own else list(dict.fromkeys(options.mechanisms))
        pairs = itertools.product(self.mechanisms, options.tasks)
        self.entries = list(filter(None, (self._entry(*pair) for pair in pairs)))
        if not self.entries:
            raise ValueError(self.skipped[0] if self.skipped else "mechanisms must be names of conf/attn, not []")
        self.same = [line for task in options.tasks for line in self._merge(task)]

    def _entry(self, mechanism: str, experiment: str) -> Entry | None:
        """One mechanism on one task; None, with a line in ``skipped``, if it cannot run there."""
        words, composed = self._composed(mechanism, experiment)
        if not (reason := composed.unavailable):
            try:
                (run,), choices = planned(composed, words, self.estimates)
                run = replace(run, overrides=tuple(words))
                return Entry(mechanism=mechanism, experiment=experiment, run=run, choices=choices, options=composed)
            except ValueError as error:
                reason = str(error)
        self.skipped.append(f"{experiment} {mechanism}: {reason}")
        return None

    def _composed(self, mechanism: str, experiment: str) -> tuple[list[str], Experiment]:
        """The overrides of ``lra.train`` for a mechanism on a task, and its options."""
        asked, attn, *own = self.options, *mechanism.split()
        given = [word for word in asked.command_overrides if word.startswith(("budget=", "protocol=", "protocol."))]
        words = [f"experiment={experiment}", f"attn={attn}", *own, *given]
        words += [override("runs", asked.runs), "trainer.threads=1", *asked.overrides]
        named = [override("study", study(asked)), f"label_keys=[{','.join(label_keys(mechanism))}]", "seeds=[0]"]
        return words, compose(Experiment, [*words, *named])

    def _merge(self, experiment: str) -> Iterator[str]:
        """Leave out each mechanism that computes on a task what an earlier one, or sdpa, computes; yield a line each.

        Mechanisms with different options outside attn are not compared.
        """
        groups: dict[tuple[str, ...], dict[str, Experiment]] = {}
        for entry in self.entries:
            if entry.experiment == experiment:
                outside = tuple(word for word in entry.mechanism.split()[1:] if not word.startswith("attn."))
                groups.setdefault(outside, {})[entry.mechanism] = entry.options
        if () in groups:
            sdpa = groups[()].get("sdpa") or self._composed("sdpa", experiment)[1]
            groups[()] = {"sdpa": sdpa} | groups[()]
        for group in groups.values():
            for mechanism, first in aliases(group).items() if len(group) > 1 else ():
                same = (mechanism, experiment)
                self.entries = [entry for entry in self.entries if (entry.mechanism, entry.experiment) != same]
                yield f"{mechanism} on {experiment}: = {first} here"

    def result(self, entry: Entry, run: PlannedRun, rate: float) -> record.RunRecord | None:
        """The record of a run that has ended, here or where its published record comes from; None if there is none.

        A published run of another configuration counts as none.

        Raises:
            ValueError: another configuration made the run here.
        """
        choices = entry.choices | {"optim.lr": rate}
        if state(run) in ("done", "diverged"):
            if run.folder not in self.settled:
                settle(run.folder, choices)
                self.settled.add(run.folder)
            return record.load(run.folder / record.NAME)
        path = tables.HOME / run.folder.relative_to(self.options.runs)
        if not (found := self.published.get(path)):
            return None
        if found.record.fingerprint == identity.fingerprint(choices | {"seed": run.seed}):
            return found.record
        self.foreign[path] = identity.difference(found.choices, choices)
        return None

    def progress(self, entry: Entry) -> tuple[list[PlannedRun], float | None, int]:
        """Find what is left of one mechanism on one task.

        Returns:
            Runs that can start now, the chosen rate if the search is over, and the number of rates that are done.

        Raises:
            ValueError: a run was made by another configuration.
        """
        search = self.options.sweep.search
        tried = {rate: entry.at(rate, search.seed, search=True) for rate in (*search.rates, *search.further)}
        found = {rate: result for rate, run in tried.items() if (result := self.result(entry, run, rate))}
        scores = {rate: None if r.status == "diverged" or r.collapsed else r.val for rate, r in found.items()}
        examples = min((r.n_val for r in found.values()), default=1)
        rates, chosen = decide(scores, search.rates, search.further, examples=examples)
        if chosen is None:
            return [tried[rate] for rate in rates], None, len(found)
        seeds = [entry.at(chosen, seed, search=False) for seed in self.options.seeds]
        return [run for run in seeds if not self.result(entry, run, chosen)], chosen, len(found)

    def rounds(self) -> Iterator[list[PlannedRun]]:
        """Yield the runs to launch next, mechanism by mechanism, until none is left.

        A round has runs of the first mechanisms that have any left: of as many mechanisms as give each worker
        ``ROUND`` runs. A run that fails is not yielded again.
        """
        tried: set[Path] = set()
        self._fit_bags()
        while True:
            runs: list[PlannedRun] = []
            for _, entries in itertools.groupby(self.entries, key=lambda entry: entry.mechanism):
                left = [run for entry in entries for run in self.progress(entry)[0] if run.folder not in tried]
                # phase one first, since phase two of the same task waits for it
                runs += sorted(left, key=lambda run: run.seed != self.options.sweep.search.seed)
                if self.at_once and len(runs) >= ROUND * self.at_once:
                    break
            if not runs:
                return
            tried |= {run.folder for run in runs}
            yield runs

    def _fit_bags(self) -> None:
        """Fit the bag of tokens of each task with runs left that lacks it, so that their records have its score."""
        left = {entry.experiment: entry.options for entry in self.entries if self.progress(entry)[0]}
        for name, options in left.items():
            task = options.task
            if task.vocab is not None and bag.read(bag.path(options.task_data(), task.metric)) is None:
                log(f"{name}: fitting the bag of tokens")
                try:
                    floors_of(options)
                except StoreError as error:
                    log(f"{name}: no bag of tokens, {error}")

    def describe(self) -> Iterable[str]:
        """Describe in lines what is finished and what is left, its time and its disk space."""
        options, search, home = self.options, self.options.sweep.search, study(self.options)
        lines, left = [], []
        for entry in self.entries:
            now, chosen, searched = self.progress(entry)
            later = [] if chosen else [entry.at(0.0, seed, search=False) for seed in options.seeds]
            left += now + later
            rates = f"{searched} rates done" + (f", {chosen} chosen" if chosen else f", {len(now)} left")
            seeds = f"{len(options.seeds) - len(now) if chosen else 0} of {len(options.seeds)} seeds done"
            time_ = f"; time left {duration(now + later)}" if now + later else ""
            lines.append(f"  {entry.run.label} {entry.experiment}: {rates}; {seeds}{time_}")
        rates = [run for run in left if run.folder.parents[2].name != home]
        yield (
            f"{home}: {len(self.mechanisms)} mechanisms on {len(options.tasks)} tasks in {options.runs / home} and "
            f"{home}-rates; rates {', '.join(map(str, search.rates))} with seed {search.seed}, then seeds "
            f"{', '.join(map(str, options.seeds))}"
        )
        yield from lines
        yield from (f"  {line}" for line in self.same)
        if self.foreign:
            path, difference = next(iter(self.foreign.items()))
            yield (
                f"  published runs of another configuration, which do not count: {len(self.foreign)}, such as "
                f"{path.relative_to(tables.HOME)} ({difference})"
            )
        if left:
            yield (
                f"  left: {len(rates)} runs for the rates and {len(left) - len(rates)} at the chosen ones, more if a "
                f"search goes on outside; time one after the other {duration(left, self.at_once)}"
            )
            yield disk(left, options)


def label_keys(mechanism: str) -> tuple[str, ...]:
    """The keys of options that a label needs: those outside attn, and not those of a group that is named too."""
    keys = [option.lstrip("+~").split("=")[0] for option in mechanism.split()[1:]]
    within = lambda key, group: key.startswith(f"{group}.")
    return tuple(k for k in keys if k != "attn" and not within(k, "attn") and not any(within(k, g) for g in keys))
