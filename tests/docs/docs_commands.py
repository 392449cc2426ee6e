"""The requirements of each class of command in README.md and docs/.

``checked`` finds the class of a command and raises AssertionError if something in it is wrong. Nothing is started:

    python -m <entry>   its words compose to the entry's options, and these to what they name (``meant``)
    python -m pytest    its options and files
    make                make -n, and every variable is one of the Makefile
    others              programs of OTHERS, whose words are not read
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

from lra import cli
from lra.bench import contestants
from lra.bench.options import BenchOptions
from lra.board.runs import Board
from lra.config import CONF
from lra.config.compose import compose
from lra.config.errors import explain, is_user_error
from lra.config.experiment import Experiment
from lra.config.options import Options
from lra.config.quoting import escape
from lra.studies.lengths.__main__ import LengthsOptions, grid
from lra.sweep.options import SweepOptions
from lra.sweep.plan import expand
from lra.train.plan import resolve

MAKEFILE = (ROOT / "Makefile").read_text()
OTHERS = ("torchrun", "srun", "pip", "wandb", "source", "export", "apt-get")
PARSERS = {  # entries without options: their function of the words
    "data_prep.bench": "data_prep.bench:arguments",
    "lra.leaderboard": "lra.leaderboard.__main__:chosen",
    "lra.ops.triton.resources": "lra.ops.triton.resources:chosen",
}
FORMS = {  # the pattern of the words
    "lra.bench.gpu_check": r"(minutes=[\d.]+)?",
    "lra.bench.peers": r"((n|batch|repeats)=[1-9]\d* ?)*",
    "lra.bench.recurrences": r"((n|batch|repeats)=[1-9]\d* ?)*",
    "lra.studies.pretrained.dinov2_onnx": r"\S+\.onnx \S+",
    "tests.support.floors": "",
    "data_prep inspect": r"\S+",
}


def checked(command: Command, config: pytest.Config) -> None:
    """AssertionError, with what the program says, for a command that raises an error."""
    program, *words = command.words
    if program == "python" and words[0] == "-m":
        run_by_pytest(words[2:], config) if words[1] == "pytest" else parsed(words[1], words[2:])
    elif program == "lra":
        routed(words)
    elif program == "make":
        made(words)
    else:
        assert program in OTHERS, f"{command}: belongs to no class of tests/docs/docs_commands.py"


def routed(words: list[str]) -> None:
    """The words of the command lra, which names the entry point."""
    if words == ["--help"]:
        return
    try:
        number, entry = cli.find(words)
    except SystemExit as stop:
        raise AssertionError(f"lra {shlex.join(words)}: {stop.code}") from None
    module, _, function = entry.module.partition(":")
    if function or words[number:] in ([], ["--help"]):  # a mention
        assert find_spec(module), f"lra {shlex.join(words)}: {module} does not exist"
    else:
        parsed(module, words[number:])


def parsed(entry: str, words: list[str]) -> None:
    """The words of an entry point, of several runs (-m) each."""
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
            given = get_args_parser().parse_args(words)
            with searched(given.config_dir) as loader:
                for run in runs(given.overrides, loader) if given.multirun else [given.overrides]:
                    meant(compose(options, run))
    except SystemExit as stop:
        raise AssertionError(f"{line}: {stop.code}") from None
    except Exception as error:
        if not is_user_error(error):
            raise
        raise AssertionError(f"{line}: {explain(error)}") from None


def options_of(entry: str) -> type[Options]:
    """The options that ``@main`` of an entry point names."""
    spec = find_spec(entry)
    assert spec, f"python -m {entry}: belongs to no class of tests/docs/docs_commands.py"
    module = f"{entry}.__main__" if spec.submodule_search_locations else entry
    source = Path(find_spec(module).origin).read_text()
    (kind,) = re.findall(r"^@main\((\w+)\)$", source, re.M)
    origin = re.search(rf"^from (\.[\w.]*) import .*\b{kind}\b", source, re.M)  # the entry may need an extra
    return resolve_name(f"{relative(origin[1], module.rpartition('.')[0]) if origin else module}:{kind}")


@contextlib.contextmanager
def searched(folder: str | None) -> Iterator[ConfigLoaderImpl]:
    """Hydra over conf and, as with --config-dir, over another folder."""
    path = create_config_search_path(str(CONF))
    if folder:
        path.prepend("command-line", f"file://{Path(folder).absolute()}", anchor=SearchPathQuery(provider="schema"))
    Hydra.create_main_hydra2("lra", path)
    try:
        yield GlobalHydra.instance().config_loader()
    finally:
        GlobalHydra.instance().clear()


def runs(words: list[str], loader: ConfigLoaderImpl) -> list[list[str]]:
    """The words of runs of -m, so that each word is in one; of a glob, in which none can be wrong, the ends."""
    overrides = OverridesParser.create(loader).parse_overrides(list(map(escape, words)))
    (every,) = BasicSweeper.split_arguments(overrides, None)
    if any("glob(" in word for word in words):
        return [every[0], every[-1]]
    known: set[str] = set()
    return [run for run in every if set(run) - known and (known.update(run) or True)]


def meant(options: Options) -> None:
    """ValueError if options name something that does not exist or does not go together."""
    match options:
        case Experiment() if not options.unavailable:  # with four GPUs
            with mock.patch.multiple(torch.cuda, is_available=lambda: True, device_count=lambda: 4):
                resolve(options)
        case BenchOptions():  # every name is known; every task with one of those that change options
            asked = contestants.asked(options)
            names = [name for name in asked.mechanisms if "=" in name][:3] or asked.mechanisms[:1]
            pairs = zip(cycle(names), cycle(asked.tasks), range(max(len(names), len(asked.tasks))), strict=False)
            for name, task, _ in pairs:
                contestants.experiment(name, [f"task={task}", f"budget={asked.budget}", *asked.overrides])
        case LengthsOptions():
            meant(grid(options))
        case SweepOptions(sweep=sweep) if sweep.search:
            Board(options.replace(mechanisms=options.mechanisms[:1], measure=0), 1)
        case SweepOptions(sweep=sweep):  # the first value of each axis, on every task
            grids = {name: {key: values[:1] for key, values in axes.items()} for name, axes in sweep.grids.items()}
            expand(options.replace(sweep=sweep.replace(grids=grids), measure=0), threads=1)


def run_by_pytest(words: list[str], config: pytest.Config) -> None:
    try:
        given = config._parser.parse(words, namespace=argparse.Namespace())
    except pytest.UsageError as error:
        raise AssertionError(f"pytest {shlex.join(words)}: {error}") from None
    assert given.file_or_dir and all((ROOT / file).is_file() for file in given.file_or_dir), given.file_or_dir


def made(words: list[str]) -> None:
    """make -n, without <placeholders>; a variable that the Makefile never reads would do nothing."""
    for word in words:
        name, equals, _ = word.partition("=")
        assert not equals or f"$({name})" in MAKEFILE, f"make {word}: no such variable"
    words = [word for word in words if "<" not in word]
    done = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
