"""The command lra: it starts at once, its subcommands are those of python -m, and an unknown one names the others."""

import os
import resource
import subprocess
import sys
from importlib.util import find_spec

import pytest

from lra import cli
from lra.config import CONF

ROOT = CONF.parent
LRA = [sys.executable, "-m", "lra.cli"]
AT_MOST = 0.3  # seconds of processor time


def call(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("arguments", [(), ("--help",), ("--version",)])
def test_it_answers_at_once_without_torch(arguments):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = call(*LRA, *arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < AT_MOST
    assert run.returncode == 0 and run.stderr == ""
    if arguments != ("--version",):
        named = {line.split()[0] for line in run.stdout.splitlines() if line.startswith("  ")}
        commands = "data train sweep report leaderboard evaluate submit bench check maps publish study"
        assert named >= {*commands.split()}
    code = "from lra import cli; cli.main(); import sys; print('torch' in sys.modules)"
    assert call(sys.executable, "-c", code, *arguments).stdout.endswith("\nFalse\n")


WRONG = {
    "trian task=listops": "lra: trian: no such command; did you mean train? the commands are data, train, sweep, ",
    "task=listops": "lra: task=listops: no such command; the commands are data, train, ",
    "study": "lra: study <name>: no such study; name one of dropin, factorise, inverses, ",
    "study transfre run=x": "lra: study transfre: no such study; name one of dropin, ",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_an_unknown_command_names_the_valid_ones(arguments):
    run = call(*LRA, *arguments.split())
    assert run.returncode == 1 and run.stderr.startswith(WRONG[arguments]) and run.stderr.count("\n") == 1


def test_every_command_has_an_entry_point():
    later = ("lra.leaderboard", "lra.evaluate", "lra.submit", "data_prep.inspect:main", "data_prep.export:main")
    for name, entry in cli.entries().items():
        module = entry.module.partition(":")[0]
        assert find_spec(module) or entry.module in later, name
    assert {name for name in cli.entries() if name.startswith("study ")} >= {"study probes", "study transfer show"}


SAME = [
    ("train", "lra.train", ["--help"]),
    ("data", "data_prep", ["task=nope"]),
    ("data show", "data_prep.show", ["task=listops", "budget=smoke", "count=0"]),
    ("bench gpu-check", "lra.bench.gpu_check", ["25"]),
    ("study lengths", "lra.studies.lengths", ["--version"]),
    ("check", "lra.laws", ["attn=cur_best"]),
]


@pytest.mark.parametrize("name, module, arguments", SAME)
def test_it_does_what_python_m_does(name, module, arguments):
    ours, theirs = call(*LRA, *name.split(), *arguments), call(sys.executable, "-m", module, *arguments)
    assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)
    assert ours.stdout or ours.stderr.startswith("lra: ")


def test_a_function_gets_the_arguments_and_is_imported_when_it_is_needed(tmp_path):
    (tmp_path / "mine.py").write_text("import sys\ndef main(argv):\n    print(argv)\n    return 3\n")
    code = "from lra import cli; cli.ENTRIES['data inspect'] = cli.EntryPoint('mine:main'); cli.main()"
    env = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-c", code, "data", "inspect", "a b", "--x"]
    run = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (3, "['a b', '--x']\n")
    code = "from lra import cli; cli.ENTRIES['data inspect'] = cli.EntryPoint('mine.missing:main'); cli.main()"
    run = subprocess.run([*command[:2], code, "data", "inspect"], env=env, capture_output=True, text=True)
    assert run.returncode == 1 and run.stderr == "lra: mine.missing is not part of this installation\n"


def test_the_console_script_is_declared():
    assert '[project.scripts]\nlra = "lra.cli:main"\n' in (ROOT / "pyproject.toml").read_text()
