"""python -m lra.sweep sweep=selection: skip, resume or start every run of a grid by one of hydra's launchers."""

if __name__ == "__main__":
    from lra.config.manual import begin

    begin("sweep")  # before torch is imported

import signal
from collections import defaultdict
from collections.abc import Iterable
from importlib import import_module

import torch

from ..config.entry import main
from ..config.quoting import report_command
from ..console import log, plural
from ..runs import reader, record
from .launcher import Launcher
from .options import SweepOptions
from .plan import PlannedRun, RoundsPlan, describe, expand, study
from .progress import Watch, outcome, state, steps_done


@main(SweepOptions)
def sweep(options: SweepOptions) -> None:
    """Run a sweep, or print its plan.

    Raises:
        ValueError: the overrides do not give a run, or runs failed; the latter at the end.
    """
    failures = carry_out(options)
    if failures:
        raise ValueError(failures)


def carry_out(options: SweepOptions) -> str | None:
    """Print the plan of a sweep and, unless ``plan=true``, start the runs that are left.

    Args:
        options: options of the sweep, in an entry point whose hydra configuration has a launcher.

    Returns:
        A message if runs failed, else None.

    Raises:
        ValueError: the overrides do not give a run, or the folder of the runs cannot be created.
    """
    launcher = Launcher(options)
    if launcher.threads:
        # Steps are measured with the threads of a run.
        torch.set_num_threads(launcher.threads)

    # Plan: a search over learning rates decides its runs round by round, a grid has one round.
    rounds: Iterable[list[PlannedRun]]
    if options.sweep.search:
        search = plan_search(options, options.sweep.search.planner, launcher.at_once)
        skipped = search.skipped
        duplicates = search.duplicates
        rounds = search.rounds()
        plan = search.describe()
    else:
        runs, skipped = expand(options, threads=launcher.threads)
        duplicates = []
        rounds = [runs]
        for run in runs:
            reader.warn_of_missing_files(run.folder)
        plan = describe(runs, options, launcher.at_once)
    for line in skipped:
        log(f"skipped: {line}")
    print(*plan, sep="\n", flush=True)
    if options.plan:
        return None

    # Without its folder no run can start.
    try:
        options.runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"runs={options.runs} cannot be created: {error.strerror}") from error
    watch = run_rounds(launcher, rounds)
    return summarise(options, watch, launcher.unwritable, duplicates)


def plan_search(options: SweepOptions, planner_name: str, at_once: int | None) -> RoundsPlan:
    """Make the plan of a learning-rate search by the class that its configuration names."""
    module, _, name = planner_name.rpartition(".")
    planner = getattr(import_module(module), name)
    return planner(options, at_once)


def run_rounds(launcher: Launcher, rounds: Iterable[list[PlannedRun]]) -> Watch:
    """Run rounds of runs until all have ended or the time is over; a run that failed before is tried again.

    Returns:
        The progress display; its ``states`` has the runs of all rounds.

    Raises:
        KeyboardInterrupt: the sweep was interrupted; the message is the line to print.
    """
    # SIGTERM stops the sweep as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Watch([]) as watch:
        try:
            with launcher:
                for runs in rounds:
                    for run in runs:
                        # A failed run gets another chance.
                        if state(run) == "failed":
                            launcher.forget_failure(run)
                    watch.add(runs)
                    launcher.complete(runs)
                    watch.states.update(dict.fromkeys(launcher.unwritable, "failed"))
        except KeyboardInterrupt:
            if not launcher.time_is_over:
                raise KeyboardInterrupt(f"stopped, {watch.summary()}; the same command resumes") from None
            # The time limit ended the sweep: wait until the runs have written their checkpoints.
            launcher.wait_for_interrupted(list(watch.states))
    return watch


def summarise(
    options: SweepOptions, watch: Watch, unwritable: dict[PlannedRun, str], duplicates: list[str]
) -> str | None:
    """Log what has ended and what is left; returns one line if runs failed, else None."""
    by_state: dict[str, list[PlannedRun]] = defaultdict(list)
    for run in watch.states:
        run_state = "failed" if run in unwritable else state(run)
        by_state[run_state].append(run)

    # Runs without a result, and the steps that they have done.
    left = by_state["left"] + by_state["running"]
    if left:
        begun = [f"{run} (step {steps_done(run):,} of {run.steps:,})" for run in left if steps_done(run)]
        started = f" with {', '.join(begun)}" if begun else ""
        log(f"{plural(len(left), 'run')} left; the same command resumes{started}")
    if not options.sweep.search:
        for home in dict.fromkeys(run.folder.parent for run in watch.states):
            line = reader.SeedDirs(home).summary()
            if line:
                log(line)
    log(f"{study(options)}: {watch.summary()}; {report_command(study(options), options.runs)}")
    for line in duplicates:
        log(line)
    for run in by_state["diverged"]:
        log(f"{run}: {outcome(run)}")
    failed = by_state["failed"]
    for run in failed:
        reason = f"failed, {unwritable[run]}" if run in unwritable else outcome(run)
        log(f"{run}: {reason}\n  {run.command}")
    if not failed:
        return None
    remedy = "the same command tries them again"
    if unwritable:
        remedy = f"make the folders of {len(unwritable)} of them writable, then {remedy}"
    # A run with a damaged record is not started again.
    damaged = sum((run.folder / record.NAME).exists() for run in failed)
    if damaged:
        remedy = f"delete the damaged {record.NAME} of {damaged} of them, then {remedy}"
    return f"{len(failed)} of {len(watch.states)} runs failed; {remedy}"


if __name__ == "__main__":
    sweep()
