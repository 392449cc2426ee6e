"""The log of commands: lines on stderr, and text that a stranger may have written."""

import sys
from pathlib import Path


def log(line: str) -> None:
    """Print a line on stderr without buffering; of several processes of one run only the first prints."""
    if is_main_process():
        print(visible(line), file=sys.stderr, flush=True)


def is_main_process() -> bool:
    """Whether this process is the first or the only one of its run."""
    dist = sys.modules.get("torch.distributed")  # unless it was imported, this process belongs to no group
    return not (dist and dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def visible(text: str) -> str:
    """Escape what a terminal would act on: control characters, marks of writing direction, halves of characters."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def pip_install(extra: str) -> str:
    """The command that installs an extra of pyproject.toml, in a checkout or next to an installed package."""
    checkout = (Path(__file__).parents[1] / "pyproject.toml").exists()
    return f"pip install '{'.' if checkout else 'lra-suite'}[{extra}]'"


def plural(count: int, noun: str) -> str:
    """Write a number with its noun: "1 thread", "1,500 threads"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def clock(seconds: float) -> str:
    """Write a time as 4:05, 13:04:05 or, from two days on, as 3 days."""
    if seconds >= 2 * 86400:
        return f"{seconds / 86400:,.0f} days"
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}" if minutes >= 60 else f"{minutes}:{seconds:02d}"
