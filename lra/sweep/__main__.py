"""python -m lra.sweep sweep=selection: skip, resume or start every run of a grid by one of hydra's launchers."""

if __name__ == "__main__":
    from lra.startup import begin

    begin()  # before torch is imported

import signal

import torch

from ..config.entry import main
from ..console import log
from ..runs import scores
from .board import Board
from .job import FAILED
from .launcher import Launcher
from .options import SweepOptions
from .plan import describe, expand, study
from .progress import Watch, outcome, state, steps


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
    launcher = Launcher(options)
    if launcher.threads:
        torch.set_num_threads(launcher.threads)  # for the measurement of a step
    if options.sweep.search:
        board = Board(options, launcher.at_once)
        skipped, same, lines, rounds = board.skipped, board.same, board.describe(), board.rounds()
    else:
        runs, skipped = expand(options, threads=launcher.threads)
        same, lines, rounds = [], describe(runs, options, launcher.at_once), [runs]
    for line in skipped:
        log(f"skipped: {line}")
    print(*lines, sep="\n", flush=True)
    if options.plan:
        return None
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops like Ctrl-C, with a line
    with Watch([]) as watch:
        try:
            with launcher:
                for runs in rounds:
                    for run in runs:
                        if state(run) == "failed":
                            (run.folder / FAILED).unlink(missing_ok=True)
                    watch.add(runs)
                    launcher.complete(runs)
        except KeyboardInterrupt:
            if not launcher.over:
                raise KeyboardInterrupt(f"stopped, {watch.summary()}; the same command goes on") from None
            launcher.settle(list(watch.states))
    runs = list(watch.states)
    ended = {run: state(run) for run in runs}
    those = lambda *states: [run for run in runs if ended[run] in states]
    if left := those("left", "running"):
        begun = ", ".join(f"{run} (step {steps(run):,} of {run.steps:,})" for run in left if steps(run))
        log(f"{len(left)} runs left, the same command goes on{f' with {begun}' if begun else ''}")
    for home in dict.fromkeys(run.folder.parent for run in runs) if not options.sweep.search else ():
        if line := scores.summary(home):
            log(line)
    log(f"{study(options)}: {watch.summary()}; {scores.report_command(study(options), options.runs)}")
    for line in same:
        log(line)
    for run in those("diverged"):
        log(f"{run}: {outcome(run)}")
    for run in (failed := those("failed")):
        log(f"{run}: {outcome(run)}\n  {run.command}")
    return f"{len(failed)} of {len(runs)} runs failed; the same command tries them again" if failed else None


if __name__ == "__main__":
    sweep()
