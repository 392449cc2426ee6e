"""The states of a sweep's runs, read from their folders, so that any process or host may run them."""

import contextlib
import threading
import time
from collections import Counter
from statistics import mean

from ..console import clock, log
from ..disk import lock
from ..disk.atomic import content
from ..live import live_line
from ..runs import metrics_file, record
from .job import FAILED
from .plan import PlannedRun

EVERY = 1.0  # seconds between reads
LINE_EVERY = 60.0  # seconds after which the summary is logged again if the output is no terminal
ENDED = ("done", "diverged", "failed")


def state(run: PlannedRun) -> str:
    """Read the state of a run: done | diverged | failed | running | left."""
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
        return f"failed, {content(run.folder / FAILED).decode(errors='replace').strip()}"
    except ValueError as error:
        return f"failed, {error}"


def steps(run: PlannedRun) -> int:
    """Read the number of steps up to the last evaluation."""
    with contextlib.suppress(ValueError, IndexError):
        return int(content(run.folder / metrics_file.NAME).splitlines()[-1].split(b",")[0])
    return 0


class Watch:
    """A progress display while the block runs: a bar in a terminal, log lines elsewhere."""

    def __init__(self, runs: list[PlannedRun]):
        self.line = live_line()
        self.task = self.line.add_task("runs", total=0, text="")
        self.states = {}
        self.add(runs)
        self.end, self.last_line = threading.Event(), time.monotonic()

    def __enter__(self) -> "Watch":
        self.line.start()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def add(self, runs: list[PlannedRun]) -> None:
        """Display further runs; the remaining time is estimated from the work that is done from now on.

        A run without an estimate weighs as the mean of the others.
        """
        # Weight of a run: its estimated time, or the mean of the known ones.
        states = self.states | {run: state(run) for run in runs}
        usual = mean([run.seconds for run in states if run.seconds] or [1.0])
        self.weights = {run: run.seconds or usual for run in states}
        self.states = states  # last, for the thread that looks
        self.begin, self.work = time.monotonic(), self._work()
        self.line.update(self.task, total=len(self.states))

    def __exit__(self, *error) -> None:
        self.end.set()
        self.thread.join()
        if error[0] is None:
            self._look()
        self.line.stop()

    def _watch(self) -> None:
        while not self.end.wait(EVERY):
            self._look()

    def _look(self) -> None:
        for run, before in self.states.items():
            now = before if before in ENDED else state(run)
            if now != before:
                self.states[run] = now
                if now in ENDED:
                    self._tell(f"{run}: {outcome(run)}; {self.summary()}")
        ended = sum(s in ENDED for s in self.states.values())
        self.line.update(self.task, completed=ended, text=self.summary())
        if self.line.disable and time.monotonic() - self.last_line > LINE_EVERY:
            self._tell(self.summary())

    def _tell(self, line: str) -> None:
        self.last_line = time.monotonic()
        log(line)

    def summary(self) -> str:
        """Count the runs by state and estimate the remaining time."""
        # Runs by state, those that ended well first.
        count = Counter(self.states.values())
        parts = [f"{count['done']} of {len(self.states)} done"]
        parts += [f"{count[name]} {name}" for name in ("diverged", "failed", "running", "left") if count[name]]
        # The time left is in proportion to the work left.
        total = sum(self.weights.values())
        now = self._work()
        if self.work < now < total:
            seconds = (time.monotonic() - self.begin) * (total - now) / (now - self.work)
            parts.append(f"{clock(seconds)} to go")
        return ", ".join(parts)

    def _work(self) -> float:
        """The completed work of all runs in estimated seconds; a run that ended early counts in full."""
        work = 0.0
        for run, run_state in self.states.items():
            if run_state in ENDED:
                work += self.weights[run]
            elif run_state == "running":
                work += self.weights[run] * min(1, steps(run) / run.steps)
        return work
