"""The plan of a sweep: its runs with their time and their disk space."""

import itertools
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Protocol

from ..config.compose import compose, config_dir_flags
from ..config.errors import prefixed
from ..config.experiment import Experiment
from ..config.quoting import command_line, override
from ..console import clock, plural
from ..runs import record
from ..runs.reader import SeedDirs
from ..runs.run_dir import check_choices
from ..train.plan import make_plan
from .estimate import START_SECONDS, Estimates
from .options import SweepFile, SweepOptions, override_keys


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One seed of one configuration.

    Args:
        overrides: overrides of lra.train.
        task, label, seed: identity of the run.
        folder: run directory.
        steps: training steps.
        eval_every: training steps between evaluations.
        disk: bytes of its checkpoints.
        seconds: estimated time, None if unknown.
        basis: source of the estimate: record, measured or unknown.
    """

    overrides: tuple[str, ...]
    task: str
    label: str
    seed: int
    folder: Path
    steps: int
    eval_every: int
    disk: int
    seconds: float | None = None
    basis: str = "unknown"

    def __str__(self) -> str:
        return f"{self.task} {self.label} seed {self.seed}"

    @property
    def command(self) -> str:
        """The command of this run."""
        return command_line("train", *config_dir_flags(), *self.overrides)


class RoundsPlan(Protocol):
    """A plan that decides its runs round by round, from the results of earlier rounds.

    Args:
        skipped: a line for each mechanism that this machine cannot run.
        duplicates: a line for each mechanism that computes the same function as another one.
    """

    skipped: list[str]
    duplicates: list[str]

    def rounds(self) -> Iterator[list[PlannedRun]]:
        """Yield the runs to launch next, until none is left."""

    def describe(self) -> Iterable[str]:
        """Describe in lines what is finished and what is left."""


def study(options: SweepOptions) -> str:
    """Study of a sweep: study=, else [sweep-]<name>[-<protocol>][-<budget>]; no sweep- with a learning-rate search."""
    if options.study:
        return options.study
    parts = [options.sweep.name]
    if options.sweep.search is None:
        parts.insert(0, "sweep")
    # The paper's protocol and budget are the default and not named.
    parts += [name for name in (options.protocol.name, options.budget) if name != "paper"]
    return "-".join(parts)


# Keys that a label always shows.
IN_LABEL = ("pretrain", "pretrain.matched")


def points(sweep: SweepFile) -> list[list[str]]:
    """List the overrides of every point of every grid of a sweep.

    Axes outside attn become part of the label, unless the label or the task's name shows them already.
    """
    listing = []
    for grid in sweep.grids.values():
        axes = [_axis(key, values) for key, values in grid.items()]
        # Options of attn are part of a label by default.
        label_keys = []
        for key in override_keys(list(grid)):
            is_attn = key.split(".")[0] == "attn"
            if not is_attn and key not in IN_LABEL and key not in sweep.shown:
                label_keys.append(key)
        if label_keys:
            axes.append([f"label_keys=[{','.join(label_keys)}]"])
        listing += [list(point) for point in itertools.product(*axes)]
    return listing


def _axis(key: str, values: Sequence[Any]) -> list[str]:
    """Write the overrides of one axis.

    Text is copied, so that it may be a value of any type; other values are written as JSON.
    """
    overrides = []
    for value in values:
        text = value if isinstance(value, str) else json.dumps(value)
        overrides.append(f"{key}={text}")
    return overrides


def expand(options: SweepOptions, *, threads: int | None) -> tuple[list[PlannedRun], list[str]]:
    """List the runs of a sweep.

    Args:
        options: options of the sweep.
        threads: CPU threads of each run, None for torch's default.

    Returns:
        The runs, and a line for each mechanism that this machine cannot run and each value of an axis that a task
        rejects, for example because its sequences are too short.

    Raises:
        ValueError: no point gives a run, the overrides of one are wrong, or a run directory has another configuration.
    """
    runs: list[PlannedRun] = []
    skipped: list[str] = []
    estimates = Estimates(options.runs, options.measure)
    # Overrides that all runs share. A protocol override is copied: ``protocol.name`` may differ from its yaml's name.
    common = [f"budget={options.budget}"]
    protocol = [line for line in options.command_overrides if line.startswith(("protocol=", "protocol."))]
    if not any(line.startswith(("protocol=", "protocol.name=")) for line in protocol):
        common.append(f"protocol={options.protocol.name}")
    common += protocol
    common += [override("study", study(options)), override("runs", options.runs)]
    if threads:
        common.append(f"trainer.threads={threads}")
    for task, point in itertools.product(options.tasks, points(options.sweep)):
        overrides = [f"task={task}", *point, *common, *options.overrides]
        title = " ".join(line for line in overrides[: len(point) + 1] if not line.startswith("label_keys="))
        with prefixed(title):
            composed = compose(Experiment, [*overrides, f"seeds={list(options.seeds)}"])
        if composed.unavailable:
            skipped.append(f"{task}: {composed.unavailable}")
            continue
        try:
            seed_runs, choices = plan_seeds(composed, overrides, estimates)
        except ValueError as error:
            # Only a value of an axis may be rejected; any other error is the user's.
            prefixes = tuple(f"{key} " for key in override_keys(point))
            if not str(error).startswith(prefixes):
                raise ValueError(f"{title}: {error}") from None
            skipped.append(f"{task}: {error}")
            continue
        for run in seed_runs:
            check_choices(run.folder, choices)
        SeedDirs(composed.home).check_custom_code(choices)
        runs += seed_runs
    if skipped and not runs:
        raise ValueError(skipped[0])
    if len({run.folder for run in runs}) < len(runs):
        raise ValueError("the sweep has the same run twice: a value is listed twice, or an axis is not in the label")
    return runs, skipped


def plan_seeds(
    composed: Experiment, overrides: Sequence[str], estimates: Estimates
) -> tuple[list[PlannedRun], dict[str, Any]]:
    """Plan the seeds of one configuration.

    Args:
        composed: experiment with the seeds.
        overrides: its overrides without the seeds.
        estimates: estimates of their time.

    Returns:
        A run for each seed, and their choices, see ``Experiment.choices``.

    Raises:
        ValueError: the options do not give a model or a source.
    """
    # The configuration is resolved once; its seeds differ in folder and overrides only.
    plan = make_plan(composed)
    choices = plan.experiment.choices(plan.data.source.provenance)
    seed_dirs = SeedDirs(composed.home)
    run_seconds, basis = estimates.of(plan, choices, may_measure=seed_dirs.count_without_record(composed.seeds) > 0)
    runs = []
    for seed in composed.seeds:
        run = PlannedRun(
            overrides=(*overrides, f"seeds=[{seed}]"),
            task=composed.task.name,
            label=composed.label,
            seed=seed,
            folder=seed_dirs.path(seed),
            steps=composed.optim.steps,
            eval_every=composed.optim.eval_every,
            disk=plan.disk_bytes,
            seconds=run_seconds,
            basis=basis,
        )
        runs.append(run)
    return runs, choices


def describe(runs: list[PlannedRun], options: SweepOptions, at_once: int | None) -> Iterable[str]:
    """Describe the plan in lines: finished and remaining runs, their time and its basis, their disk space.

    Args:
        runs: runs of the sweep.
        options: options of the sweep.
        at_once: number of runs at once, None if a cluster decides.
    """
    left = [run for run in runs if not (run.folder / record.NAME).exists()]
    study_dir = options.runs / study(options)
    yield f"{study(options)}: {plural(len(runs), 'run')} in {study_dir}, {len(runs) - len(left)} of them finished"
    # Runs are ordered by task.
    for task, group in itertools.groupby(runs, key=lambda run: run.task):
        task_runs = list(group)
        task_left = [run for run in task_runs if run in left]
        labels = dict.fromkeys(run.label for run in task_runs)
        seeds = dict.fromkeys(str(run.seed) for run in task_runs)
        yield f"  {task}: {', '.join(labels)}; seeds {', '.join(seeds)}"
        steps = " or ".join(f"{count:,}" for count in sorted({run.steps for run in task_runs}))
        yield f"    {len(task_left)} left of {steps} steps each, {_time(task_left)}"
    if left:
        yield f"  time one after the other, imports and validation included: {duration(left, at_once)}"
        yield disk(left, options)


def disk(runs: list[PlannedRun], options: SweepOptions) -> str:
    """Describe the disk space that runs take, and the free space."""
    # The nearest directory that exists has the same file system.
    runs_folder = options.runs.absolute()
    existing = next(folder for folder in (runs_folder, *runs_folder.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    size = sum(run.disk for run in runs)
    megabytes = max(1, round(size / 2**20))
    warning = ": NOT ENOUGH" if size > free else ""
    return f"  disk: about {megabytes:,} MB, {free / 2**30:,.1f} GB free{warning}"


def seconds(runs: list[PlannedRun]) -> float | None:
    """The time of runs one after the other, each in its own process; None if a task has no estimate.

    A run without an estimate counts as the mean of the other runs of its task.
    """
    total = 0.0
    for task in {run.task for run in runs}:
        estimates = [run.seconds for run in runs if run.task == task]
        numbers = [value for value in estimates if value is not None]
        if not numbers:
            return None
        time_per_run = START_SECONDS + mean(numbers)
        total += time_per_run * len(estimates)
    return total


def duration(runs: list[PlannedRun], at_once: int | None = None) -> str:
    """Describe the time of runs one after the other, and of ``at_once`` of them at a time if that is given."""
    total = seconds(runs)
    if total is None:
        return "unknown"
    text = f"about {clock(total)}"
    if at_once and at_once > 1:
        text += f", {clock(total / at_once)} with {at_once} at once"
    return text


def _time(runs: list[PlannedRun]) -> str:
    if not runs:
        return "nothing to do"
    if seconds(runs) is None:
        return "time unknown: no earlier run on this kind of device; measure=<seconds> times a step"
    # The number of runs by the source of their estimate.
    texts = {
        "record": "{} by earlier runs on this kind of device",
        "measured": "{} by a step measured alone on sequences of full length",
        "unknown": "{} like the others",
    }
    counts = Counter(run.basis for run in runs)
    sources = [text.format(counts[basis]) for basis, text in texts.items() if counts[basis]]
    return f"{duration(runs)} ({', '.join(sources)})"
