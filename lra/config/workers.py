"""Several runs of one command in joblib's worker processes (-m hydra/launcher=joblib).

joblib's pool breaks when one of its workers is killed, for example because memory ran out, and takes all other runs
along. A worker therefore computes nothing: it forks a process for each run and waits for it. A run whose process is
killed or interrupted is one failed run. If a worker itself is killed, its run counts as failed, and the pool is started
again for the others.
"""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Self

from ..console import log
from ..io import atomic, lock

# Seconds between two looks at processes that are ending.
PAUSE = 0.1
# The command gives up after so many pools in a row that break without killing a run.
POOLS = 3


class Workers:
    """The state of the runs of one command, in files of a temporary folder that its processes share.

    <number>.title      overrides of the run with this number
    <number>.outcome    written when the run has ended: why it failed, or nothing
    <number>.orphaned   written when the run's worker ended before the run: the time in nanoseconds
    <number>.running    lock that the process of the run holds

    The ``with`` statement removes the folder at its end.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lra-runs-"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def launch(self, start: Callable[[], object]) -> None:
        """Start the runs, and start them again without those that have ended each time the pool breaks.

        Args:
            start: starts every run in a pool of workers, which call ``run``.

        Raises:
            BrokenProcessPool: POOLS pools in a row broke without a run whose worker was killed.
        """
        broken = 0
        while True:
            try:
                start()
                return
            except BrokenProcessPool:
                broken += 1
                if self._fail_first_orphan():
                    broken = 0
                elif broken == POOLS:
                    raise

    def run(self, number: int, title: str, compute: Callable[[], str]) -> None:
        """Compute a run in a forked process and wait for it; called by a worker.

        Args:
            number: number of the run.
            title: its overrides, for the reason of a failure.
            compute: computes it; returns title and reason of a failure, an empty text if it ended well.
        """
        # The run ended before the pool broke.
        if self._outcome(number).exists():
            return
        (self.folder / f"{number}.title").write_text(title)
        # A pipe tells the forked process that this worker has ended: only the worker holds its writing end.
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writing)
            # The process ends in this call; only the worker continues below.
            self._compute(number, compute, reading)
        os.close(reading)
        # Wait without computing; a child that ends early leaves no reason, unless its run was interrupted.
        _, status = os.waitpid(child, 0)
        os.close(writing)
        if os.WIFSIGNALED(status):
            self._fail(number, killed_by(os.WTERMSIG(status)))
        elif status and not self._outcome(number).exists():
            self._fail(number, f"ended with exit status {os.waitstatus_to_exitcode(status)}")

    def failures(self) -> dict[int, str]:
        """The runs that failed, by number, each with the reason."""
        reasons = {int(path.stem): path.read_text() for path in self.folder.glob("*.outcome")}
        return {number: reasons[number] for number in sorted(reasons) if reasons[number]}

    def _outcome(self, number: int) -> Path:
        return self.folder / f"{number}.outcome"

    def _fail(self, number: int, explanation: str) -> None:
        """Log that the process of a run ended early and mark the run as failed."""
        title = (self.folder / f"{number}.title").read_text()
        reason = f"{title}: {explanation}"
        log(f"lra: failed: {reason}")
        self._outcome(number).write_text(reason)

    def _compute(self, number: int, compute: Callable[[], str], pipe: int) -> None:
        """Compute a run in the forked process and end it.

        Args:
            number: number of the run.
            compute: computes it, see ``run``.
            pipe: descriptor of a pipe whose other end the worker holds; reading returns when the worker has ended.
        """
        status = 1
        try:
            with lock.hold(self.folder / f"{number}.running"):
                threading.Thread(target=self._end_with_worker, args=(number, pipe), daemon=True).start()
                reason = compute()
                # An empty file means success, so a full disk must not cut a reason to nothing.
                atomic.write(self._outcome(number), reason)
            status = 0
        except KeyboardInterrupt as stop:
            self._fail(number, str(stop) or "interrupted")
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            # Do not return: the frames below are copies of the worker's.
            os._exit(status)

    def _end_with_worker(self, number: int, pipe: int) -> None:
        """End this process when its worker has ended, for whatever reason."""
        # Returns when the kernel has closed the worker's end of the pipe.
        os.read(pipe, 1)
        (self.folder / f"{number}.orphaned").write_text(str(time.monotonic_ns()))
        os.kill(os.getpid(), signal.SIGKILL)

    def _fail_first_orphan(self) -> bool:
        """Mark the run whose worker was killed as failed; the pool itself ended the workers of the other runs.

        Returns:
            Whether there is such a run.
        """
        # Wait until the forked processes of the broken pool have ended, so that no run is started twice.
        for path in self.folder.glob("*.running"):
            while lock.holder(path):
                time.sleep(PAUSE)
        # When a worker is killed, the pool ends the other workers afterwards, so the earliest orphan is its run. Ignore
        # runs with an outcome: they ended in time.
        times: dict[int, int] = {}
        for path in list(self.folder.glob("*.orphaned")):
            number = int(path.stem)
            text = path.read_text()
            if text and not self._outcome(number).exists():
                times[number] = int(text)
            path.unlink()
        if not times:
            return False
        first = min(times, key=lambda number: times[number])
        self._fail(first, killed_by(signal.SIGKILL))
        return True


def killed_by(signal_number: int) -> str:
    """Explain the end of a process by a signal."""
    memory = ", perhaps because memory ran out" if signal_number == signal.SIGKILL else ""
    return f"ended by {signal.Signals(signal_number).name}{memory}"
