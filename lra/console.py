"""Messages on stderr: lines, one live line in a terminal, and text that a stranger may have written."""

import contextlib
import multiprocessing
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn


def log(line: str) -> None:
    """Print a line on stderr without buffering; of several processes of one run only the first prints."""
    if speaks():
        print(visible(line), file=sys.stderr, flush=True)


def speaks() -> bool:
    """Whether this process is the first or the only one of its run."""
    dist = sys.modules.get("torch.distributed")  # unless it was imported, this process belongs to no group
    return not (dist and dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def visible(text: str) -> str:
    """Escape what a terminal would act on: control characters, marks of writing direction, halves of characters."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def pip_install(extra: str) -> str:
    """The command that installs an extra of pyproject.toml, in a checkout or beside an installed package."""
    checkout = (Path(__file__).parents[1] / "pyproject.toml").exists()
    return f"pip install '{'.' if checkout else 'lra-suite'}[{extra}]'"


def clock(seconds: float) -> str:
    """Write a time as 4:05, 13:04:05 or, from two days on, as 3 days."""
    if seconds >= 2 * 86400:
        return f"{seconds / 86400:,.0f} days"
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}" if minutes >= 60 else f"{minutes}:{seconds:02d}"


class _Stderr(Console):
    def show_cursor(self, show: bool = True) -> bool:
        """Leave the cursor as it is: a process that is killed could not show it again."""
        return False


def live_line() -> Progress:
    """Make a progress display that is erased at its end; its tasks have a field ``text``, which stands behind the bar.

    Returns:
        The display, ``disable``d where the caller has to log lines instead: without a terminal, in a worker of a
        launcher, whose siblings write to the same terminal, in the background of a shell, and in all processes of a
        run but the first.
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
        redirect_stdout=False,  # stdout may be a file
        disable=not (speaks() and console.is_interactive and _foreground()),
    )


def _foreground() -> bool:
    if multiprocessing.parent_process():
        return False
    with contextlib.suppress(OSError, ValueError):  # a terminal of another session, a stream without a descriptor
        return os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    return True
