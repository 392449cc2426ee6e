"""The requirements of each class of command in README.md and docs/.

``checked`` finds the class of a command and raises AssertionError where something in it is wrong:

    python -m <entry>   called in this process up to where its work starts (ENTRIES): the same parser, the same
                        configuration, every word and key; test_docs.py runs those that take seconds to their end
    python -m pytest    its options and files
    make                make -n, and every variable is one of the Makefile
    pip install         the extras are in pyproject.toml
    torchrun, srun      their options, then lra.train as above, as one of the processes that they start
    wandb               the subcommand and its options
    source, export      what the Makefile says
    apt-get             is in SYSTEM
"""

import argparse
import contextlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from docs_pages import ROOT, Command
from hydra._internal.hydra import Hydra
from hydra.types import RunMode

from lra.config.entry import main
from lra.studies.pretrained.options import PretrainedOptions

SYSTEM = ("apt-get install chromium",)
LAUNCHED = {"srun": {"--nodes", "--ntasks-per-node"}}


class Reached(BaseException):
    """The function that does the work of an entry point."""


class Entry(NamedTuple):
    """``function`` of ``module`` is what ``python -m`` calls; at each of ``starts`` its work starts."""

    module: str
    function: str
    starts: tuple[str, ...]


# python -m lra.new: a line here. Every one of ``starts`` is replaced by the end of the check.
ENTRIES = {
    "lra.train": Entry("lra.train.__main__", "train", ()),
    "lra.sweep": Entry("lra.sweep.__main__", "sweep", ("lra.sweep.__main__.describe", "lra.sweep.__main__.Board")),
    "lra.report": Entry("lra.report.__main__", "report", ("lra.report.__main__.collect", "lra.report.repository.save")),
    "lra.runs.publish": Entry("lra.runs.publish", "publish", ("lra.runs.publish.scan",)),
    "lra.laws": Entry("lra.laws.__main__", "laws", ("lra.laws.laws.block",)),
    "lra.maps": Entry("lra.maps.__main__", "show", ("lra.maps.__main__.open_run",)),
    "lra.studies.transfer": Entry(
        "lra.studies.transfer.__main__", "transfer", ("lra.studies.transfer.__main__.finished",)
    ),
    "lra.studies.transfer.show": Entry("lra.studies.transfer.show", "show", ("lra.studies.transfer.show.scan",)),
    "lra.bench": Entry("lra.bench.__main__", "bench", ("lra.bench.run.rates", "lra.bench.profile.table")),
    "lra.studies.dropin": Entry("lra.studies.dropin.__main__", "dropin", ("lra.studies.dropin.__main__.sources",)),
    "lra.studies.factorise": Entry(
        "lra.studies.factorise.__main__", "factorise", ("lra.studies.factorise.__main__.result",)
    ),
    "lra.studies.probes": Entry("lra.studies.probes.__main__", "probe", ("lra.studies.probes.__main__.finished",)),
    "lra.studies.lengths": Entry("lra.studies.lengths.__main__", "lengths", ("lra.sweep.__main__.describe",)),
    "lra.studies.inverses": Entry(
        "lra.studies.inverses.__main__",
        "inverses",
        ("lra.studies.inverses.__main__.finished", "lra.studies.inverses.__main__.random_tokens"),
    ),
    "lra.bench.gpu_check": Entry("lra.bench.gpu_check", "main", ("torch.cuda.is_available",)),
    "lra.ops.triton.resources": Entry(
        "lra.ops.triton.resources", "main", ("lra.ops.triton.resources.ProcessPoolExecutor",)
    ),
    "lra.studies.pretrained": Entry("lra.studies.pretrained.__main__", "pretrained", ()),
    "data_prep": Entry("data_prep.__main__", "prepare", ("data_prep.__main__.make", "data_prep.__main__.overview")),
    "data_prep.floors": Entry("data_prep.floors", "floors", ("lra.train.floors.floors_of",)),
    "data_prep.show": Entry("data_prep.show", "show", ("lra.data.source.Source.open",)),
    "data_prep.bench": Entry("data_prep.bench", "main", ("data_prep.bench.seconds_of_first_call",)),
}


def checked(command: Command, patch: pytest.MonkeyPatch, config: pytest.Config) -> None:
    """AssertionError, with what the program says, for a command that would be refused."""
    program, *words = command.words
    if program == "python":
        assert words[0] == "-m", f"{command}: python -m"
        if words[1] == "pytest":
            run_by_pytest(words[2:], config)
        else:
            call(words[1], words[2:], patch)
    elif program in ("torchrun", "srun"):
        launched(program, words, patch)
    else:
        kinds = {"make": made, "pip": installed, "wandb": known_to_wandb, "source": sourced, "export": exported}
        if program in kinds:
            kinds[program](words)
        else:
            assert shlex.join(command.words) in SYSTEM, f"{command}: belongs to no class of tests/docs/docs_commands.py"


def call(name: str, words: list[str], patch: pytest.MonkeyPatch) -> None:
    """An entry point up to where its work starts."""
    if name == "lra.studies.pretrained.dinov2_onnx":
        assert len(words) == 2, f"usage: python -m {name} <model.onnx> <folder>"
        return
    assert name in ENTRIES, f"python -m {name}: belongs to no class of tests/docs/docs_commands.py"
    entry, reached = ENTRIES[name], []

    def start(*_, **__):
        reached.append(name)
        raise Reached

    with patch.context() as inside:
        if name == "lra.train":
            function = importlib.import_module(entry.module).train
            reached = as_far_as_training(inside)
        elif name == "lra.studies.pretrained":  # importing it needs transformers, reading its words does not
            function = main(PretrainedOptions)(start)
        else:
            function = getattr(importlib.import_module(entry.module), entry.function)
        for place in entry.starts:
            inside.setattr(place, start)
        if name in ("lra.sweep", "lra.studies.lengths"):
            words = sweep_in_short(words, inside)
        elif name == "lra.bench":
            bench_in_short(inside)
        elif name == "lra.ops.triton.resources":
            inside.delenv("TRITON_INTERPRET", raising=False)
        with contextlib.suppress(Reached):
            try:
                enter(function, words, inside)
            except AssertionError:  # with -m hydra has composed every run before the first one starts
                if not reached or "-m" not in words:
                    raise
    assert reached, f"python -m {name} {shlex.join(words)}: never came to its work"


def enter(function: Callable[[], None], words: list[str], patch: pytest.MonkeyPatch) -> None:
    """An entry point as a command calls it, in this process; AssertionError with its last word where it refuses."""
    patch.setattr(sys, "argv", ["lra", *words])
    if "-m" not in words:  # which hydra otherwise finds out by composing everything once more
        patch.setattr(Hydra, "get_mode", lambda *_, **__: RunMode.RUN)
    try:
        function()
    except SystemExit as stop:
        assert not stop.code, f"{shlex.join(words)}: {stop.code}"


def as_far_as_training(patch: pytest.MonkeyPatch) -> list[str]:
    """lra.train checks everything and builds its model, as if there were four GPUs; of several runs the first and last.

    Returns the list of the labels of what was built.
    """
    from hydra._internal.core_plugins.basic_launcher import BasicLauncher
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    from lra.train import __main__, distributed

    built, launch, legal = [], BasicLauncher.launch, BasicSweeper.validate_batch_is_legal

    def run_seeds(plan):
        plan.experiment.classifier()
        built.append(plan.experiment.label)

    def between(self, jobs):  # of a glob there are many, and none can be wrong
        legal(self, jobs[1:-1] if len(jobs) < 9 else [])

    def two(self, jobs, **others):
        return launch(self, [*jobs[:1], *jobs[1:][-1:]], **others)

    patch.setattr(BasicLauncher, "launch", two)
    patch.setattr(BasicSweeper, "validate_batch_is_legal", between)
    patch.setattr(torch.cuda, "is_available", lambda: True)
    patch.setattr(torch.cuda, "device_count", lambda: 4)
    patch.setattr(__main__, "run_seeds", run_seeds)
    patch.setattr(distributed.Processes, "to_launch", False)
    patch.setattr(distributed, "group", lambda processes: contextlib.nullcontext())
    return built


def sweep_in_short(words: list[str], patch: pytest.MonkeyPatch) -> list[str]:
    """The first point of each task; a launcher that is not installed is said to be, its options are not looked at."""
    from lra.sweep import plan

    points = plan.points
    patch.setattr(plan, "points", lambda *given: points(*given)[:1])
    missing = {"submitit_slurm": "hydra_plugins.hydra_submitit_launcher", "ray": "hydra_plugins.hydra_ray_launcher"}
    for launcher, package in missing.items():
        if f"hydra/launcher={launcher}" in words and not found(package):
            words = [w for w in words if not w.startswith(("hydra/launcher=", "hydra.launcher."))]
    return [*words, "measure=0"]


def bench_in_short(patch: pytest.MonkeyPatch) -> None:
    """Names are looked up one and all; composed are the first few with changed keys, and one with every task."""
    from lra.bench import contestants

    compose, done = contestants.experiment, set()

    def experiment(name, words):
        task = next(word for word in words if word.startswith("task="))
        if task not in done or ("=" in name and len(done) < 5):
            compose(name, words)
        done.update((name, task))

    patch.setattr(contestants, "experiment", experiment)


def found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def launched(program: str, words: list[str], patch: pytest.MonkeyPatch) -> None:
    if program == "torchrun":
        from torch.distributed.run import get_args_parser

        try:
            given = get_args_parser().parse_args(words)
        except SystemExit:
            raise AssertionError(f"torchrun {shlex.join(words)}: refused by torchrun") from None
        assert given.module and given.rdzv_endpoint
        name, rest = given.training_script, given.training_script_args
        nodes, local = int(given.nnodes), int(given.nproc_per_node)
        patch.setenv("TORCHELASTIC_RUN_ID", "1")
    else:
        options = dict(word.split("=") for word in words if word.startswith("--"))
        assert options.keys() <= LAUNCHED[program], f"{program}: {options}"
        python, m, name, *rest = [word for word in words if not word.startswith("--")]
        assert (python, m) == ("python", "-m")
        nodes, local = int(options["--nodes"]), int(options["--ntasks-per-node"])
        for key, value in {"NTASKS": nodes * local, "JOB_NAME": "lra", "NTASKS_PER_NODE": local, "PROCID": 0}.items():
            patch.setenv(f"SLURM_{key}", str(value))
        patch.setenv("SLURM_NNODES", str(nodes))
    for key, value in {"WORLD_SIZE": nodes * local, "RANK": 0, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": local}.items():
        patch.setenv(key, str(value))
    call(name, rest, patch)


def run_by_pytest(words: list[str], config: pytest.Config) -> None:
    try:
        given = config._parser.parse(words, namespace=argparse.Namespace())
    except pytest.UsageError as error:
        raise AssertionError(f"pytest {shlex.join(words)}: {error}") from None
    assert given.file_or_dir and all((ROOT / file).is_file() for file in given.file_or_dir), given.file_or_dir


def made(words: list[str]) -> None:
    """make -n, without <placeholders>; a variable that the Makefile never reads would do nothing."""
    text = (ROOT / "Makefile").read_text()
    for word in words:
        name, equals, _ = word.partition("=")
        assert not equals or f"$({name})" in text or f"if $({name})" in text, f"make {word}: no such variable"
    words = [word for word in words if "<" not in word]
    done = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def installed(words: list[str]) -> None:
    with open(ROOT / "pyproject.toml", "rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    assert words[0] == "install" and len(words) == 2
    for extra in re.fullmatch(r"\.\[([\w,]+)\]", words[1])[1].split(","):
        assert extra in extras, f"pip install {words[1]}: extras are {', '.join(extras)}"


def known_to_wandb(words: list[str]) -> None:
    cli = pytest.importorskip("wandb.cli.cli", reason="pip install '.[wandb]'").cli
    command = cli.commands.get(words[0])
    assert command is not None, f"wandb {words[0]}: no such command"
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word.partition("=")[0] for word in words[1:] if word.startswith("-")} <= options, words


def sourced(words: list[str]) -> None:
    venv = re.search(r"^VENV := (.+)$", (ROOT / "Makefile").read_text(), re.M)[1]
    assert words == [f"{venv}/bin/activate"], words


def exported(words: list[str]) -> None:
    said = dict(re.findall(r"^export (\w+) \?= (.+)$", (ROOT / "Makefile").read_text(), re.M))
    assert dict(word.split("=") for word in words) == said, words


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
