"""python -m lra.sweep sweep=selection: skip, resume or start every run of a grid by one of hydra's launchers."""

import functools
import os
import signal
import time
from pathlib import Path

import torch
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobStatus
from hydra.types import HydraContext, RunMode

from ..config.compose import quoted
from ..config.entry import main
from ..config.errors import explain
from ..console import log
from ..data.source import cores
from ..runs import scores
from .board import Board
from .job import FAILED, fail, job
from .options import SweepOptions
from .plan import PlannedRun, describe, expand, study
from .progress import ENDED, EVERY, Watch, outcome, state, steps
from .window import Window

ON_A_GPU = 2  # runs that share a GPU, unless hydra.launcher.n_jobs is given


@main(SweepOptions)
def sweep(options: SweepOptions) -> None:
    """Run a sweep, or print its plan.

    Raises:
        ValueError: the overrides do not give a run, or runs failed; the latter at the end.
    """
    if failures := carry_out(options):
        raise ValueError(failures)


def carry_out(options: SweepOptions) -> str | None:
    """Print the plan of a sweep and, unless it is all that is wanted, run what is left of it.

    Args:
        options: options of the sweep, in an entry point whose hydra configuration has a launcher.

    Returns:
        One line if runs failed, else None.

    Raises:
        ValueError: the overrides do not give a run.
    """
    at_once, threads = workers()
    if options.sweep.search:
        threads = 1
    if options.minutes and at_once is None:
        raise ValueError(
            "minutes is for runs on this machine, hydra/launcher=basic or joblib; a cluster has limits of its own"
        )
    window = Window(options.minutes)
    if threads:
        torch.set_num_threads(threads)  # for the measurement of a step
    if options.sweep.search:
        board = Board(options, threads=threads)
        skipped, same = board.skipped, board.same
        lines, rounds = board.describe(at_once), board.rounds(at_once)
    else:
        (runs, skipped), same = expand(options, threads=threads), []
        lines, rounds = describe(runs, options, at_once), [runs]
    for line in skipped:
        log(f"skipped: {line}")
    print(*lines, sep="\n", flush=True)
    if options.plan:
        return None
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops like Ctrl-C, with a line
    with Watch([]) as watch:
        try:
            with window:
                for runs in rounds:
                    for run in runs:
                        if state(run) == "failed":
                            (run.folder / FAILED).unlink(missing_ok=True)
                    watch.add(runs)
                    complete(runs, options, at_once, threads, window)
        except KeyboardInterrupt:
            if not window.over:
                raise KeyboardInterrupt(f"stopped, {watch.summary()}; the same command goes on") from None
            window.settle(list(watch.states))
    runs = list(watch.states)
    ended = {run: state(run) for run in runs}
    if left := [run for run, status in ended.items() if status not in ENDED]:
        begun = ", ".join(f"{run} (step {steps(run):,} of {run.steps:,})" for run in left if steps(run))
        log(f"{len(left)} runs left, the same command goes on{f' with {begun}' if begun else ''}")
    for home in dict.fromkeys(run.folder.parent for run in runs) if not options.sweep.search else ():
        if line := scores.summary(home):
            log(line)
    log(f"{study(options)}: {watch.summary()}; {scores.report_command(study(options), options.runs)}")
    for line in same:
        log(line)
    for run, status in ended.items():
        if status == "diverged":
            log(f"{run}: {outcome(run)}")
    if failed := [run for run, status in ended.items() if status == "failed"]:
        for run in failed:
            log(f"{run}: {outcome(run)}\n  {run.command}")
        return f"{len(failed)} of {len(runs)} runs failed; the same command tries them again"
    return None


def workers() -> tuple[int | None, int | None]:
    """Decide how many runs go on at once.

    Returns:
        The number of runs at once, None if a cluster decides, and the threads of each, None for torch's own number.
    """
    choices = HydraConfig.get()
    launcher = choices.runtime.choices["hydra/launcher"]
    if launcher == "basic":
        return 1, None
    if launcher != "joblib":
        return None, None
    wanted = choices.launcher.n_jobs
    if wanted < 1:
        wanted = ON_A_GPU * torch.cuda.device_count() or cores()
    return wanted, max(1, cores() // wanted)


def complete(
    runs: list[PlannedRun], options: SweepOptions, at_once: int | None, threads: int | None, window: Window
) -> None:
    """Launch the remaining runs until all have ended.

    Runs of another sweep are waited for, and launched if that sweep dies.

    Args:
        runs: runs of the sweep.
        options: options of the sweep.
        at_once, threads: the numbers that ``workers`` returns.
        window: a run that no longer fits into it is not launched.
    """
    while open_ := [run for run in runs if state(run) not in ENDED]:
        free = [run for run in open_ if state(run) == "left"]
        if free and not (free := window.worth(free)):
            return
        if not free:
            time.sleep(EVERY)
            continue
        reason = launch(free, options, at_once, threads, window)
        if not any(state(run) in (*ENDED, "running") for run in free) and len(window.worth(free)) == len(free):
            for run in free:
                run.folder.mkdir(parents=True, exist_ok=True)
                fail(run.folder, reason or "ended without a result and without a line")


def launch(
    runs: list[PlannedRun], options: SweepOptions, at_once: int | None, threads: int | None, window: Window
) -> str | None:
    """Hand runs to hydra's launcher, as hydra does for -m.

    Args:
        runs: runs to launch.
        options: options of the sweep.
        at_once, threads: the numbers that ``workers`` returns.
        window: its end is that of the runs.

    Returns:
        The reason if the launcher stopped before the end, else None.
    """
    choices = HydraConfig.get()
    name = choices.runtime.choices["hydra/launcher"]  # sweep=board names one by itself
    ours = ("hydra.mode=", "hydra/launcher=")
    overrides = [override for override in choices.overrides.hydra if not override.startswith(ours)]
    overrides.append(f"hydra/launcher={name}")
    overrides.append(f"hydra.sweep.dir={quoted(os.path.abspath(options.runs))}")
    if name == "joblib":
        overrides += [f"hydra.launcher.n_jobs={at_once}", "hydra.launcher.batch_size=1"]
    loader = GlobalHydra.instance().config_loader()
    latest = {} if window.end is None else {os.path.abspath(run.folder): window.latest(run) for run in runs}
    where = {"cwd": str(Path.cwd()), "threads": threads, "gpus": _gpus(at_once)}
    task = functools.partial(job, **where, sweep=os.getpid(), latest=latest)
    launcher = Plugins.instance().instantiate_launcher(
        hydra_context=HydraContext(config_loader=loader, callbacks=Callbacks()),
        task_function=task,
        config=loader.load_configuration("train", overrides, RunMode.MULTIRUN),
    )
    place = lambda run: run.folder.relative_to(options.runs)
    try:
        ended = launcher.launch([[*run.overrides, f"hydra.sweep.subdir={quoted(place(run))}"] for run in runs], 0)
    except Exception as error:  # from a scheduler or a killed worker; the remaining runs are launched again
        log(f"lra: the launcher stopped: {explain(error)}")
        return explain(error)
    for run, end in zip(runs, ended, strict=True):
        if end.status is JobStatus.FAILED and state(run) == "left":
            fail(run.folder, explain(end._return_value))
    return None


def _gpus(at_once: int | None) -> list[str]:
    """The GPUs that runs on this machine take in turn; empty for a cluster, which assigns its own."""
    if at_once is None or torch.cuda.device_count() < 2:
        return []
    return os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(torch.cuda.device_count())))).split(",")


if __name__ == "__main__":
    sweep()
