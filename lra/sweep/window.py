"""The time that a sweep may take: what is started within it, and its end."""

import os
import signal
import threading
import time

from .estimate import START
from .plan import PlannedRun
from .progress import EVERY, state, steps

ENDING = 15.0, 0.2  # seconds, and the share of a short window, for runs to stop and for what is written then


class Window:
    """Ends a sweep after ``minutes`` as Ctrl-C does, within the block; without a number never.

    A run goes on from its last checkpoint, which it writes at every evaluation, so it is worth starting if it reaches
    its next one. Runs that reach their end come first.

    Args:
        minutes: length from now on.
    """

    def __init__(self, minutes: float | None):
        left = None if minutes is None else 60 * minutes
        self.end = None if left is None else time.time() + left - min(ENDING[0], ENDING[1] * left)
        self.over = False  # ended by the clock

    def __enter__(self) -> "Window":
        self.timer = None
        if self.end is not None:
            self.timer = threading.Timer(max(0.0, self.end - time.time()), self._stop)
            self.timer.daemon = True
            self.timer.start()
        return self

    def __exit__(self, *error) -> None:
        if self.timer:
            self.timer.cancel()

    def _stop(self) -> None:
        self.over = True
        os.kill(os.getpid(), signal.SIGINT)

    def settle(self, runs: list[PlannedRun]) -> None:
        """Wait, not for long, for runs that were told to stop and end after their step."""
        last = time.monotonic() + ENDING[0]
        while any(state(run) == "running" for run in runs) and time.monotonic() < last:
            time.sleep(EVERY)

    def latest(self, run: PlannedRun) -> float | None:
        """The time at which a run has to start to reach its next checkpoint, None for any; unknown runs take none."""
        return None if self.end is None else self.end - START - (run.seconds or 0.0) * run.eval_every / run.steps

    def worth(self, runs: list[PlannedRun]) -> list[PlannedRun]:
        """Those to start now, in their order, those that reach their end first."""
        if self.end is None:
            return runs
        left = self.end - time.time()
        some = [run for run in runs if time.time() <= self.latest(run)]
        return sorted(some, key=lambda run: START + (run.seconds or 0.0) * (1 - steps(run) / run.steps) > left)
