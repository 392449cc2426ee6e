"""The plan of a sweep: its runs, their time, their disk."""

import itertools
import shlex
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from omegaconf import DictConfig, OmegaConf

from ..config import compose
from ..runs import record
from ..runs.folder import settle
from ..train import build
from ..train.callbacks import clock
from ..train.plan import resolve
from .estimate import estimate, records


@dataclass(frozen=True, kw_only=True)
class Run:
    """One seed of one configuration: the overrides of lra.train that make it, and its folder."""

    overrides: tuple[str, ...]
    task: str
    label: str
    seed: int
    folder: Path
    steps: int
    eval_every: int
    disk: int
    seconds: float | None = None
    basis: str = "unknown"  # record | measured | unknown

    def __str__(self) -> str:
        return f"{self.task} {self.label} seed {self.seed}"

    @property
    def command(self) -> str:
        return shlex.join(["python", "-m", "lra.train", *self.overrides])


def study(config: DictConfig) -> str:
    parts = ["sweep", config.sweep.name, *(name for name in (config.protocol.name, config.budget) if name != "paper")]
    return config.study or "-".join(parts)


def points(grids: DictConfig) -> list[list[str]]:
    """Overrides of every point of every grid; axes outside attn become part of the label."""
    found = []
    for grid in OmegaConf.to_container(grids, resolve=True).values():
        outside = [key for key in grid if key.split(".")[0] != "attn"]
        naming = [f"label_keys=[{','.join(outside)}]"] if outside else []
        axes = [[f"{key}={_literal(value)}" for value in values] for key, values in grid.items()]
        found += [[*point, *naming] for point in itertools.product(*axes)]
    return found


def _literal(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def expand(config: DictConfig, *, threads: int | None) -> tuple[list[Run], list[str]]:
    """Every run, and a line for each mechanism that this machine cannot run.

    Raises:
        ValueError: no run can be made of the overrides, or a folder was made by another configuration.
    """
    runs, skipped = [], []
    known, deadline = records(Path(config.runs)), time.monotonic() + config.measure
    common = [f"budget={config.budget}", f"protocol={config.protocol.name}"]
    common += [f"study={study(config)}", f"runs={config.runs}"]
    if threads:
        common.append(f"trainer.threads={threads}")
    for task, point in itertools.product(config.tasks, points(config.sweep.grids)):
        overrides = [f"task={task}", *point, *common, *config.overrides]
        made = compose("train", [*overrides, f"seeds={list(config.seeds)}".replace(" ", "")])
        if why := build.unavailable(made):
            skipped.append(f"{task}: {why}")
            continue
        plan = resolve(made)
        choices = record.choices(made, plan.data.source.provenance)
        folders = {seed: plan.folder(seed) for seed in made.seeds}
        for folder in folders.values():
            settle(folder, choices)
        left = not all((folder / record.NAME).exists() for folder in folders.values())
        seconds, basis = estimate(plan, choices, known, deadline) if left else (None, "unknown")
        for seed, folder in folders.items():
            run = Run(
                overrides=(*overrides, f"seeds=[{seed}]"),
                task=made.task.name,
                label=made.label,
                seed=seed,
                folder=folder,
                steps=made.optim.steps,
                eval_every=made.optim.eval_every,
                disk=record.disk_bytes(plan.params),
                seconds=seconds,
                basis=basis,
            )
            runs.append(run)
    if len({run.folder for run in runs}) < len(runs):
        raise ValueError(f"sweep={config.sweep.name} has the same run twice; every axis must change the label")
    return runs, skipped


def describe(runs: list[Run], config: DictConfig, at_once: int | None) -> Iterable[str]:
    """The plan as lines: finished runs, those that are left, their time and its basis, their disk."""
    done = [run for run in runs if (run.folder / record.NAME).exists()]
    left = [run for run in runs if run not in done]
    yield f"{study(config)}: {len(runs)} runs in {Path(config.runs) / study(config)}, {len(done)} of them finished"
    for task, group in itertools.groupby(runs, key=lambda run: run.task):
        mine = list(group)
        todo = [run for run in mine if run in left]
        labels = list(dict.fromkeys(run.label for run in mine))
        yield f"  {task}: {', '.join(labels)}; seeds {', '.join(dict.fromkeys(str(run.seed) for run in mine))}"
        yield f"    {len(todo)} left of {mine[0].steps:,} steps each, {_time(todo)}"
    if left:
        if total := seconds(left):
            together = f", {clock(total / at_once)} with {at_once} at once" if at_once else ""
            yield f"  time: training and scoring about {clock(total)} one after the other{together}"
        runs_folder = Path(config.runs).absolute()
        free = shutil.disk_usage(next(p for p in (runs_folder, *runs_folder.parents) if p.exists())).free
        size = sum(run.disk for run in left)
        short = ": NOT ENOUGH" if size > free else ""
        yield f"  disk: about {max(1, round(size / 2**20)):,} MB, {free / 2**30:,.1f} GB free{short}"


def seconds(runs: list[Run]) -> float | None:
    """Of runs one after the other; one without an estimate counts like the mean of its task's others. None: unknown."""
    total = 0.0
    for task in {run.task for run in runs}:
        mine = [run.seconds for run in runs if run.task == task]
        known = [value for value in mine if value is not None]
        if not known:
            return None
        total += mean(known) * len(mine)
    return total


def _time(runs: list[Run]) -> str:
    if not runs:
        return "nothing to do"
    if (total := seconds(runs)) is None:
        return "time unknown: no records on this machine and no step measured (measure=<seconds>)"
    says = {
        "record": "{} by records of this kind of device",
        "measured": "{} by a step measured alone on rows of full length",
        "unknown": "{} like the others",
    }
    counts = {basis: sum(run.basis == basis for run in runs) for basis in says}
    told = ", ".join(text.format(counts[basis]) for basis, text in says.items() if counts[basis])
    return f"about {clock(total)} ({told})"
