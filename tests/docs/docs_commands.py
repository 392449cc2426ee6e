"""Checks of the commands in README.md and docs/, without running them; ``checked`` raises AssertionError:

python -m <entry>   its overrides compose to valid options, and everything that these name exists
python -m pytest    its options parse and its files exist
make                make -n succeeds, and the Makefile reads every variable
others              programs of OTHERS; their arguments are not checked
"""

import argparse
import contextlib
import re
import shlex
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from importlib.util import resolve_name as relative
from itertools import cycle
from pathlib import Path
from pkgutil import resolve_name
from unittest import mock

import pytest
import torch
from docs_pages import ROOT, Command
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser

from lra import __main__ as cli
from lra.bench import contestants
from lra.bench.contestants import BenchOptions
from lra.board.runs import Board
from lra.config import CONF
from lra.config.compose import compose
from lra.config.errors import explain, is_user_error
from lra.config.experiment import Experiment
from lra.config.options import Options
from lra.config.quoting import escape
from lra.studies.lengths.__main__ import LengthsOptions, sweep_options
from lra.sweep.options import SweepOptions
from lra.sweep.plan import expand
from lra.train.plan import make_plan

MAKEFILE = (ROOT / "Makefile").read_text()
OTHERS = ("torchrun", "srun", "pip", "wandb", "source", "export", "apt-get")
# Entry points without Hydra options: the function that parses their arguments.
PARSERS = {
    "data_prep.bench": "data_prep.bench:arguments",
    "lra.leaderboard": "lra.leaderboard.__main__:parse",
    "lra.ops.triton.resources": "lra.ops.triton.resources:chosen",
}
# Entry points without a parser function: a pattern of their arguments.
FORMS = {
    "lra.bench.gpu_check": r"(minutes=[\d.]+)?",
    **dict.fromkeys(("lra.bench.peers", "lra.bench.recurrences"), r"((n|batch|repeats)=[1-9]\d* ?)*"),
    "lra.studies.pretrained.dinov2_onnx": r"\S+\.onnx \S+",
    "data_prep inspect": r"\S+",
}


def checked(command: Command, config: pytest.Config) -> None:
    """Raise AssertionError, with the program's error message, if a command is invalid."""
    program, *words = command.words
    if words[:2] == ["-m", "lra"]:
        check_lra(words[2:] or ["--help"])
    elif program == "python" and words[0] == "-m":
        check_pytest(words[2:], config) if words[1] == "pytest" else check_entry(words[1], words[2:])
    elif program == "lra":
        check_lra(words)
    elif program == "make":
        check_make(words)
    else:
        assert program in OTHERS, f"{command}: belongs to no class of tests/docs/docs_commands.py"


def check_lra(words: list[str]) -> None:
    """Check a mention of a command, or a command whose entry point is a function: its module must exist."""
    if words == ["--help"]:
        return
    try:
        _, entry = cli.find(words)
    except SystemExit as stop:
        raise AssertionError(f"lra {shlex.join(words)}: {stop.code}") from None
    assert find_spec(entry.module.partition(":")[0]), f"lra {shlex.join(words)}: {entry.module} does not exist"


def check_entry(entry: str, words: list[str]) -> None:
    """Check the arguments of an entry point; with -m, the overrides of each run."""
    if entry == "data_prep" and words[:1] == ["inspect"]:
        entry, words = "data_prep inspect", words[1:]
    line = shlex.join(words)
    try:
        if entry in PARSERS:
            resolve_name(PARSERS[entry])(words)
        elif entry in FORMS:
            assert re.fullmatch(FORMS[entry], line), f"{line}: is not {FORMS[entry]}"
        else:
            options = options_of(entry)
            if "hydra/launcher=submitit_slurm" in words and not find_spec("submitit"):
                words = [word for word in words if not word.startswith(("hydra/launcher=", "hydra.launcher."))]
            args = get_args_parser().parse_args(words)
            with hydra_with_folder(args.config_dir) as loader:
                for run in runs(args.overrides, loader) if args.multirun else [args.overrides]:
                    check_options(compose(options, run))
    except SystemExit as stop:
        raise AssertionError(f"{line}: {stop.code}") from None
    except Exception as error:
        if not is_user_error(error):
            raise
        raise AssertionError(f"{line}: {explain(error)}") from None


def options_of(entry: str) -> type[Options]:
    """Return the options class that ``@main`` of an entry point names; the module may need an extra to import."""
    spec = find_spec(entry)
    assert spec, f"python -m {entry}: belongs to no class of tests/docs/docs_commands.py"
    module = f"{entry}.__main__" if spec.submodule_search_locations else entry
    source = Path(find_spec(module).origin).read_text()
    (kind,) = re.findall(r"^@main\((\w+)\)$", source, re.M)
    origin = re.search(rf"^from (\.[\w.]*) import .*\b{kind}\b", source, re.M)
    return resolve_name(f"{relative(origin[1], module.rpartition('.')[0]) if origin else module}:{kind}")


@contextlib.contextmanager
def hydra_with_folder(folder: str | None) -> Iterator[ConfigLoaderImpl]:
    """Initialise Hydra with conf and, as with --config-dir, another folder."""
    path = create_config_search_path(str(CONF))
    if folder:
        path.prepend("command-line", f"file://{Path(folder).absolute()}", anchor=SearchPathQuery(provider="schema"))
    Hydra.create_main_hydra2("lra", path)
    try:
        yield GlobalHydra.instance().config_loader()
    finally:
        GlobalHydra.instance().clear()


def runs(words: list[str], loader: ConfigLoaderImpl) -> list[list[str]]:
    """Select multirun overrides such that each override occurs; of a glob, whose values all exist, first and last."""
    overrides = OverridesParser.create(loader).parse_overrides(list(map(escape, words)))
    (argument_lists,) = BasicSweeper.split_arguments(overrides, None)
    if any("glob(" in word for word in words):
        return [argument_lists[0], argument_lists[-1]]
    selected, seen_overrides = [], set()
    for run in argument_lists:
        if set(run) - seen_overrides:
            selected.append(run)
        seen_overrides.update(run)
    return selected


def check_options(options: Options) -> None:
    """Raise ValueError if options name something that does not exist or contradict each other."""
    match options:
        # As on a machine with four GPUs.
        case Experiment() if not options.unavailable:
            with mock.patch.multiple(torch.cuda, is_available=lambda: True, device_count=lambda: 4):
                make_plan(options)
        # Three mechanisms with options or one without, each with a task, until every task has been used.
        case BenchOptions():
            bench = contestants.expand_mechanisms(options)
            names = [name for name in bench.mechanisms if "=" in name][:3] or bench.mechanisms[:1]
            pairs = zip(cycle(names), cycle(bench.tasks), range(max(len(names), len(bench.tasks))), strict=False)
            for name, task, _ in pairs:
                contestants.experiment(name, [f"task={task}", f"budget={bench.budget}", *bench.overrides])
        case LengthsOptions():
            check_options(sweep_options(options))
        case SweepOptions(sweep=sweep) if sweep.search:
            Board(options.replace(mechanisms=options.mechanisms[:1], measure=0), 1)
        # The first value of each axis, on every task.
        case SweepOptions(sweep=sweep):
            grids = {name: {key: values[:1] for key, values in axes.items()} for name, axes in sweep.grids.items()}
            expand(options.replace(sweep=sweep.replace(grids=grids), measure=0), threads=1)


def check_pytest(words: list[str], config: pytest.Config) -> None:
    try:
        args = config._parser.parse(words, namespace=argparse.Namespace())
    except pytest.UsageError as error:
        raise AssertionError(f"pytest {shlex.join(words)}: {error}") from None
    assert args.file_or_dir and all((ROOT / file).is_file() for file in args.file_or_dir), args.file_or_dir


def check_make(words: list[str]) -> None:
    """Run make -n without <placeholders>; a variable that the Makefile never reads is an error."""
    for word in words:
        name, equals, _ = word.partition("=")
        assert not equals or f"$({name})" in MAKEFILE, f"make {word}: no such variable"
    command = ["make", "-n", *(word for word in words if "<" not in word)]
    dry_run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert dry_run.returncode == 0, dry_run.stderr
