"""Progress of long work: bars in a terminal, log lines elsewhere, and the speed at which files are read."""

import hashlib
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as LiveDisplay

from ..console import is_main_process, log

Progress = Callable[[str, int, int | None], None]  # (name of the work, number done, total number or None)
SECONDS_BETWEEN_LINES = 10
# The reading speed is logged if reading takes longer than this many seconds.
SLOW = 2.0
# Delay in seconds before progress is shown, for work that is usually short.
DELAY = 0.5
# Bytes that are read at a time.
BLOCK = 2**22


class _Stderr(Console):
    def show_cursor(self, show: bool = True) -> bool:
        """Leave the cursor as it is: a process that is killed could not show it again."""
        return False


def live_line() -> LiveDisplay:
    """Make a progress display that is erased at its end: a bar per task, then its count and its field ``text``.

    Returns:
        The display. Its attribute ``disable`` is True where the caller has to log lines instead: without a terminal,
        in a child process of ``multiprocessing``, whose siblings write to the same terminal, in the background of a
        shell, and in all processes of a run but the first.
    """
    console = _Stderr(file=sys.stderr)
    return LiveDisplay(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}", markup=False),
        console=console,
        transient=True,
        refresh_per_second=4,
        # stdout may be a file.
        redirect_stdout=False,
        disable=not (is_main_process() and console.is_interactive and _foreground()),
    )


def _foreground() -> bool:
    """Whether this process may draw on the terminal: it is no child of multiprocessing and no background job."""
    if multiprocessing.parent_process():
        return False
    # The process group of the terminal is the foreground job. An error means that the terminal belongs to another
    # session or that stderr has no descriptor: nothing shows that this process is in the background.
    with suppress(OSError, ValueError):
        return os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    return True


@contextmanager
def reporter(name: str, delay: float = 0.0) -> Iterator[Progress]:
    """Report progress by a bar for each kind of work in a terminal, elsewhere by log lines.

    A log line comes at the end of each kind of work and, during longer work, at most every ten seconds.

    Args:
        name: name of all the work together, which begins every line.
        delay: seconds in which nothing is reported, for work that is short in most cases.
    """
    with live_line() as display:
        bars: dict[str, Any] = {}
        start = time.monotonic()
        last_line = start

        def report(work: str, done: int, total: int | None) -> None:
            nonlocal last_line
            now = time.monotonic()
            if now - start < delay:
                return
            if work not in bars:
                bars[work] = display.add_task(f"{name} {work}", total=total, text="")
            display.update(bars[work], completed=done, total=total)
            # Without a terminal: log the end and, of longer work, a line every ten seconds.
            is_due = now - last_line > SECONDS_BETWEEN_LINES
            if display.disable and (done == total or is_due):
                last_line = now
                bound = f" of {total}" if total else ""
                log(f"{name} {work}: {done}{bound}")

        yield report


class ReadMeter:
    """Counts the bytes that are read; without an error it logs MB/s at the end if reading took more than two seconds.

    Args:
        name: file or folder that is read, for the log.
        progress: reports the megabytes, once per ``BLOCK``; None if the caller reports something else.
        work: name of the work for ``progress``.
        total: number of bytes; None if it is unknown.
    """

    def __init__(self, name: str, progress: Progress | None = None, work: str = "", total: int | None = None):
        self.name = name
        self.progress = progress
        self.work = f"{work}, MB"
        self.total_megabytes = None if total is None else round(total / 1e6)
        self.size = 0

    def __enter__(self) -> Self:
        self.start = time.perf_counter()
        return self

    def add(self, size: int) -> None:
        """Count bytes that were read."""
        before = self.size // BLOCK
        self.size += size
        # A report takes longer than reading a line of a text file, so it is made once per block.
        has_new_block = self.size // BLOCK > before
        if self.progress is not None and has_new_block:
            megabytes = round(self.size / 1e6)
            self.progress(self.work, megabytes, self.total_megabytes)

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        seconds = time.perf_counter() - self.start
        if error_type is None and seconds > SLOW:
            megabytes = self.size / 1e6
            rate = megabytes / seconds
            # Two digits for slow reading, so that the rate is not rounded to 0.0.
            digits = f"{rate:,.1f}" if rate >= 1 else f"{rate:.2g}"
            log(f"{self.name}: {megabytes:,.1f} MB read at {digits} MB/s")


def read_blocks(file: IO[bytes]) -> Iterator[bytes]:
    """Read a file to its end in blocks."""
    while True:
        block = file.read(BLOCK)
        if not block:
            return
        yield block


def hash_file(file: IO[bytes], meter: ReadMeter) -> str:
    """Return the sha256 of the rest of a file in hexadecimal digits; the meter counts its bytes."""
    sha = hashlib.sha256()
    for block in read_blocks(file):
        sha.update(block)
        meter.add(len(block))
    return sha.hexdigest()
