"""A live progress display on stderr, if it is a terminal that no other process of the run writes to."""

import contextlib
import multiprocessing
import os
import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from .console import is_main_process


class _Stderr(Console):
    def show_cursor(self, show: bool = True) -> bool:
        """Leave the cursor as it is: a process that is killed could not show it again."""
        return False


def live_line() -> Progress:
    """Make a progress display that is erased at its end: a bar per task, then its count and its field ``text``.

    Returns:
        The display. Its attribute ``disable`` is True where the caller has to log lines instead: without a terminal,
        in a child process of ``multiprocessing``, whose siblings write to the same terminal, in the background of a
        shell, and in all processes of a run but the first.
    """
    console = _Stderr(file=sys.stderr)
    return Progress(
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
    if multiprocessing.parent_process():
        return False
    # A process in the background of a shell is in another group than the terminal's.
    # The terminal may be of another session, and the stream may have no descriptor.
    with contextlib.suppress(OSError, ValueError):
        return os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    return True
