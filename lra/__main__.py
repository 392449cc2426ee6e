"""The command ``lra``, or ``python -m lra``: one name for every entry point.

``lra train ...`` does what ``python -m lra.train ...`` does.

This module imports nothing but the standard library, so that ``lra --help`` answers at once.
"""

import difflib
import importlib
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .startup import begin, show


class EntryPoint(NamedTuple):
    """An entry point.

    Args:
        module: module that ``python -m`` runs, or "module:function" for a function that takes the arguments.
        about: what the command does, for the help; empty for a command that the help does not list by itself.
    """

    module: str
    about: str = ""


ENTRIES = {
    "data": EntryPoint("data_prep", "prepare or verify data: data task=listops; data show, baselines, inspect, export"),
    "data show": EntryPoint("data_prep.show"),
    "data inspect": EntryPoint("data_prep.inspect:main"),
    "data export": EntryPoint("data_prep.export"),
    "data baselines": EntryPoint("data_prep.baselines"),
    "data floors": EntryPoint("data_prep.baselines"),  # the older name
    "data bench": EntryPoint("data_prep.bench"),
    "train": EntryPoint("lra.train", "train every seed of a configuration: train task=listops attn=cur_abs"),
    "sweep": EntryPoint("lra.sweep", "train a grid of mechanisms, tasks and seeds: sweep sweep=selection"),
    "report": EntryPoint("lra.report", "print tables of the runs and write a page with figures"),
    "leaderboard": EntryPoint("lra.leaderboard", "list published and measured results: leaderboard task=listops"),
    "evaluate": EntryPoint("lra.evaluate", "score trained models on fresh test examples: evaluate runs=runs/<study>"),
    "submit": EntryPoint("lra.submit", "check finished runs and write a submission to the leaderboard"),
    "bench": EntryPoint("lra.bench", "measure time, memory and error of mechanisms; also bench gpu-check"),
    "bench gpu-check": EntryPoint("lra.bench.gpu_check"),
    "check": EntryPoint("lra.checks", "test padding, batches and gradients of a mechanism: check attn=cur_abs"),
    "maps": EntryPoint("lra.maps", "draw the attention of a trained model: maps run=<run directory>"),
    "publish": EntryPoint("lra.runs.publish", "add finished runs to the tables in runs/published"),
}
STUDIES = Path(__file__).parent / "studies"


def main() -> None:
    """Run the command that ``sys.argv`` names; exit with status 1 and a message if there is no such command.

    Without arguments, print the help.
    """
    begin()
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        show(overview())
        return
    if arguments[0] == "--version":
        from . import __version__

        show(f"lra-suite {__version__}")
        return
    words, entry = find(arguments)
    # Like ``python -m``, find custom classes in the working directory; a console script searches its own folder.
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())
    run(entry, arguments[words:])


def entries() -> dict[str, EntryPoint]:
    """Return every command with its entry point, the studies included."""
    studies = {}
    for path in sorted(STUDIES.glob("*/__main__.py")):
        name = path.parent.name
        studies[f"study {name}"] = EntryPoint(f"lra.studies.{name}")
        # A study may have a second command, which shows its results.
        if (path.parent / "show.py").exists():
            studies[f"study {name} show"] = EntryPoint(f"lra.studies.{name}.show")
    return ENTRIES | studies


def find(arguments: list[str]) -> tuple[int, EntryPoint]:
    """Find the command that the first arguments name.

    Args:
        arguments: the arguments of ``lra``, at least one.

    Returns:
        The number of words of the command's name, or more if no argument follows the name; and its entry point.

    Raises:
        SystemExit: no command has this name; the message lists the commands, or the studies.
    """
    commands = entries()
    # The longest name counts: "study transfer show" before "study transfer".
    for words in (3, 2, 1):
        name = " ".join(arguments[:words])
        if name in commands:
            return words, commands[name]

    # No such command: name the valid ones.
    group = arguments[0]
    if group == "study":
        names = [name.removeprefix("study ") for name in commands if name.startswith("study ")]
        study = arguments[1] if len(arguments) > 1 else "<name>"
        sys.exit(f"lra: study {study}: no such study; name one of {', '.join(names)}")
    names = [name for name, entry in commands.items() if entry.about]
    matches = difflib.get_close_matches(group, [*names, "study"], n=1)
    hint = f"did you mean {matches[0]}? " if matches else ""
    sys.exit(f"lra: {group}: no such command; {hint}the commands are {', '.join([*names, 'study'])}")


def run(entry: EntryPoint, arguments: list[str]) -> None:
    """Run an entry point with arguments, a module as ``python -m`` does."""
    module, _, function = entry.module.partition(":")
    # Functions take their arguments; modules read sys.argv, as under python -m.
    if function:
        call: Callable[[list[str]], int | None] = getattr(importlib.import_module(module), function)
        sys.exit(call(arguments))
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def overview() -> str:
    """The text of ``lra --help``."""
    commands = [f"  {name:<12} {entry.about}" for name, entry in ENTRIES.items() if entry.about]
    studies = [name.removeprefix("study ") for name in entries() if name.startswith("study ")]
    lines = [
        "usage: lra <command> [<option>=<value> ...]",
        "",
        "Long Range Arena: train and compare efficient attention, state-space models and recurrences.",
        "",
        *commands,
        f"  {'study':<12} run a study: {', '.join(studies)}",
        "",
        "lra <command> --help lists the options of a command. Options are Hydra overrides:",
        "  lra train task=listops attn=cur_abs attn.count=32",
        "  lra train -m task=listops attn=cur_abs,nystrom   # one job per value",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
