"""The states of a sweep's runs, read from their run directories, so that any process or host may run them."""

import contextlib
import threading
import time
from collections import Counter
from pathlib import Path
from statistics import mean

from ..console import clock, log
from ..data.progress import live_line
from ..io import lock
from ..io.atomic import content
from ..runs import checkpoint, record
from ..train import pretrain
from .job import FAILED
from .plan import PlannedRun

# Seconds between reads of the run directories.
POLL_SECONDS = 1.0
# Seconds between log lines of the summary if the output is not a terminal.
LOG_SECONDS = 60.0
ENDED = ("done", "diverged", "failed")


def state(run: PlannedRun) -> str:
    """Read the state of a run: done | diverged | failed | running | left (never started, or interrupted)."""
    if (run.folder / record.NAME).exists():
        try:
            return record.load(run.folder / record.NAME).status
        except ValueError:
            return "failed"
    if (run.folder / FAILED).exists():
        return "failed"
    return "running" if lock.holder(run.folder / lock.NAME) else "left"


def outcome(run: PlannedRun) -> str:
    """Describe the result of a run that ended, or the reason why it has none."""
    try:
        if (run.folder / record.NAME).exists():
            return record.load(run.folder / record.NAME).outcome
        reason = content(run.folder / FAILED).decode(errors="replace")
        return f"failed, {reason.strip()}"
    except ValueError as error:
        return f"failed, {error}"


def steps_done(run: PlannedRun) -> int:
    """Read the number of steps up to the last evaluation, without pretraining."""
    return _last_step(run.folder)


def steps_with_pretraining(run: PlannedRun) -> int:
    """Read the number of steps of pretraining and training up to their last evaluations."""
    return _last_step(run.folder / pretrain.FOLDER) + _last_step(run.folder)


def _last_step(folder: Path) -> int:
    # The first column of the last line; a phase before its first evaluation has no line.
    with contextlib.suppress(ValueError, IndexError):
        last_line = content(folder / checkpoint.METRICS).splitlines()[-1]
        return int(last_line.split(b",")[0])
    return 0


class Watch:
    """A progress display while the block runs: a bar in a terminal, log lines elsewhere."""

    def __init__(self, runs: list[PlannedRun]):
        self.line = live_line()
        self.task = self.line.add_task("runs", total=0, text="")
        self.states: dict[PlannedRun, str] = {}
        self.add(runs)
        self.end = threading.Event()
        self.last_line = time.monotonic()

    def __enter__(self) -> "Watch":
        self.line.start()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def add(self, runs: list[PlannedRun]) -> None:
        """Display further runs; the remaining time is estimated from the work that is done from now on.

        A run without an estimate weighs as the mean of the others.
        """
        states = self.states | {run: state(run) for run in runs}
        # Weight of a run: its estimated time, or the mean estimate.
        estimates = [run.seconds for run in states if run.seconds]
        default = mean(estimates or [1.0])
        self.weights = {run: run.seconds or default for run in states}
        # The watching thread reads the weights of all states, so the states are assigned last.
        self.states = states
        self.begin = time.monotonic()
        self.work_before = self._work()
        self.line.update(self.task, total=len(self.states))

    def __exit__(self, *error) -> None:
        self.end.set()
        self.thread.join()
        if error[0] is None:
            self._update()
        self.line.stop()

    def _watch(self) -> None:
        while not self.end.wait(POLL_SECONDS):
            self._update()

    def _update(self) -> None:
        """Read the states, log the runs that ended, and refresh the display."""
        for run, before in self.states.items():
            now = before if before in ENDED else state(run)
            if now != before:
                self.states[run] = now
                if now in ENDED:
                    self._log(f"{run}: {outcome(run)}; {self.summary()}")
        ended = sum(run_state in ENDED for run_state in self.states.values())
        self.line.update(self.task, completed=ended, text=self.summary())
        if self.line.disable and time.monotonic() - self.last_line > LOG_SECONDS:
            self._log(self.summary())

    def _log(self, line: str) -> None:
        self.last_line = time.monotonic()
        log(line)

    def summary(self) -> str:
        """Count the runs by state and estimate the remaining time."""
        # Runs by state, those that ended well first.
        count = Counter(self.states.values())
        parts = [f"{count['done']} of {len(self.states)} done"]
        for name in ("diverged", "failed", "running", "left"):
            if count[name]:
                parts.append(f"{count[name]} {name}")
        # The remaining time is proportional to the remaining work.
        work_left = 0.0
        for run, run_state in self.states.items():
            if run_state not in ENDED:
                work_left += self.weights[run] - self._work_of(run, run_state)
        work = self._work()
        if work > self.work_before and work_left:
            elapsed = time.monotonic() - self.begin
            seconds = elapsed * work_left / (work - self.work_before)
            parts.append(f"{clock(seconds)} to go")
        return ", ".join(parts)

    def _work(self) -> float:
        """The completed work of all runs in estimated seconds."""
        return sum(self._work_of(run, run_state) for run, run_state in self.states.items())

    def _work_of(self, run: PlannedRun, run_state: str) -> float:
        """The completed work of a run; one that is not done counts up to its last evaluation."""
        share = 1.0 if run_state == "done" else min(1.0, steps_done(run) / run.steps)
        return share * self.weights[run]
