"""Text for a terminal: log lines on stderr, text from untrusted files made harmless, and formats of numbers."""

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev


class AlreadyReported(ValueError):
    """A failure that another process has explained already: the command ends without its own message."""


class OtherRankFailed(AlreadyReported):
    """A failure of rank 0, on another rank."""


def log(line: str) -> None:
    """Print a line on stderr without buffering; of several processes of one run only the first prints."""
    if is_main_process():
        print(visible(line), file=sys.stderr, flush=True)


def is_main_process() -> bool:
    """Whether this process is the first or the only one of its run."""
    # Unless torch.distributed was imported, this process belongs to no group.
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return True
    return dist.get_rank() == 0


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or its class if it has none."""
    message = str(error).strip() or type(error).__name__
    return message.splitlines()[0]


def visible(text: str) -> str:
    """Escape unprintable characters except line ends: control characters, bidirectional marks, lone surrogates."""
    characters = []
    for character in text:
        is_harmless = character.isprintable() or character == "\n"
        # repr gives the escape sequence of a character, between quotes.
        characters.append(character if is_harmless else repr(character)[1:-1])
    return "".join(characters)


def pip_install(extra: str) -> str:
    """Return the command that installs an extra of pyproject.toml, from the checkout or for the installed package."""
    is_checkout = Path(__file__).parents[1].joinpath("pyproject.toml").exists()
    if not is_checkout:
        return f"pip install 'lra-suite[{extra}]'"
    # Without -e, pip replaces an editable installation by a copy.
    return f"pip install -e '.[{extra}]'"


def plural(count: int, noun: str) -> str:
    """Write a number with its noun: "1 thread", "1,500 threads"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def spread_text(values: Sequence[float]) -> str:
    """Format mean ± sample standard deviation with two decimals, 36.02 ± 0.31; a single value alone, 36.02."""
    text = f"{mean(values):.2f}"
    if len(values) > 1:
        text += f" ± {stdev(values):.2f}"
    return text


def clock(seconds: float) -> str:
    """Write a time in seconds as 4:05, 13:04:05 or, from two days on, rounded to days: 3 days."""
    if seconds >= 2 * 86400:
        return f"{seconds / 86400:,.0f} days"
    minutes, seconds = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{seconds:02d}"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
