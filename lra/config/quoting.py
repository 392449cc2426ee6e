"""Quoting of overrides and commands: for Hydra's grammar, and around that for a shell.

An override passes through two parsers. A shell splits a command into arguments and removes one level of quotes; Hydra
then parses each argument, ``key=value``, with its own grammar, in which brackets, commas, quotes and all letters
outside ASCII have to be quoted too. ``command_line`` writes the commands that are printed.
"""

import functools
import re
import shlex
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException

from . import CONF

# Values that Hydra's grammar certainly reads as they stand; whatever else there is goes through the parser.
_SIMPLE = re.compile(r"[a-z_/][a-z0-9_/]*", re.ASCII)
_KEYWORDS = {"true", "false", "null", "nan", "inf"}
# A key of an override, such as +attn.pinv.steps, hydra/launcher or ~task.
_KEY = re.compile(r"[+~]*[\w.$/@:-]+")
# Values that are meant for Hydra's grammar: a list, a dictionary, a quoted text, a call such as glob(*,exclude=psf*).
_STRUCTURED = re.compile(
    r"\[.*\]|\{.*\}|'.*'|\".*\"|(bool|choice|extend_list|float|glob|int|interval|json_str|range|shuffle|sort|str|tag)\(.*",
    re.DOTALL,
)


@functools.lru_cache(10_000)
def quote(value: object) -> str:
    """Write a value so that Hydra reads it as one text, whatever characters it has.

    Args:
        value: text, or an object such as a path that stands for its text.

    Returns:
        The text itself if Hydra reads it as that text, else the text in single quotes: a (1)/runs -> 'a (1)/runs'.
    """
    text = str(value)
    if _SIMPLE.fullmatch(text) and text not in _KEYWORDS:
        return text
    if "${" not in text and _read(text) == text:
        return text
    # OmegaConf would resolve ${key}, in quotes too: a backslash keeps it, and backslashes in front of it are doubled.
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    return QuotedString(text, Quote.single).with_quotes()


def override(key: str, value: object) -> str:
    """Write an override whose value is one text: ``override("study", "a (1)")`` -> study='a (1)'."""
    return f"{key}={quote(value)}"


def command_line(name: str, *overrides: str) -> str:
    """Write a command that can be pasted into a shell.

    Args:
        name: subcommand of ``lra``, such as ``train`` or ``study transfer``.
        overrides: overrides as Hydra reads them, see ``override``.
    """
    return shlex.join(["lra", *name.split(), *overrides])


def report_command(study: str, runs: Path) -> str:
    """The command that prints the tables of a study."""
    overrides = [override("study", study)]
    if runs != Path("runs"):
        overrides.append(override("runs", runs))
    return command_line("report", *overrides)


@functools.lru_cache(10_000)
def escape(argument: str) -> str:
    """Quote the value of an argument if Hydra's grammar cannot read it.

    The shell has removed the quotes of ``study='a (1)'``, and Hydra would refuse the rest. A value with "=", such as a
    run directory, gets backslashes; any other value that the grammar refuses is one text and gets quotes.

    Args:
        argument: argument of the command line, without the shell's quotes.

    Raises:
        ValueError: a group has a list as its value, which Hydra would read as something else.
    """
    key, equals, value = argument.partition("=")
    # A flag of Hydra, such as --config-dir=<folder>, is not an override.
    if argument.startswith("-") or not equals or not _KEY.fullmatch(key):
        return argument
    group = key.lstrip("+~")
    if value.startswith("[") and (CONF / group).is_dir():
        raise ValueError(f"{group} takes one name, not a list; for several runs: -m {group}={value.strip('[]')}")
    if _SIMPLE.fullmatch(value) or _parse(argument) is not None:
        return argument
    if "=" in value:
        with_backslashes = f"{key}={value.replace('=', chr(92) + '=')}"
        if _parse(with_backslashes) is not None:
            return with_backslashes
    # A mistake inside a list or a call is left for Hydra to explain.
    if _STRUCTURED.fullmatch(value):
        return argument
    return f"{key}={QuotedString(value, Quote.single).with_quotes()}"


def _parse(argument: str) -> Override | None:
    """Parse an override; None if Hydra's grammar rejects it."""
    try:
        return OverridesParser.create().parse_override(argument)
    except HydraException:
        return None


def _read(text: str) -> object:
    """Read an unquoted value as Hydra does; None if it is rejected or stands for several runs."""
    parsed = _parse(f"key={text}")
    if parsed is None or parsed.is_sweep_override():
        return None
    return parsed.value()
