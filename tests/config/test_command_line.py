"""Quoting of command lines for the shell and for Hydra, and isolation of killed runs in multirun (-m)."""

import os
import re
import signal
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from support.training import wait

from data_prep.__main__ import PrepareOptions
from lra.config import CONF
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.config.quoting import command_line, escape, override, quote, report_command
from lra.config.workers import Workers, killed_by
from lra.io import lock
from lra.report.__main__ import ReportOptions
from lra.runs import record
from lra.sweep.options import SweepOptions
from lra.sweep.plan import PlannedRun, study

NAMES = [
    "plain-1.2_x@y+z", "my study", "two  blanks", "a (1)", "f(1)", "choice(1,2)", "[draft] x", "x [0.9, 0.98]",
    "[0,1", "{x", "{a:1}", "50% & #1", "it's", 'a "b"', "'tis", 'it\'s "both"', "a=b", "optim.betas=[0.9, 0.98]",
    "a,b", "a;b|c*d?e!f<g>h`i`", "$HOME", "${HOME}", "${study} $(date)", "~x", "müller", "Größe 日本", "007", "1_000",
    "1e3", "null", "True", "nan", "-inf", "--help=x", "#1",
]  # fmt: skip
BACKSLASHES = ["a\\'b", "end\\", "a\\b", "\\${y}", "a\\\\${y}"]


def shell_arguments(command):
    """Run a command in bash and return the arguments that ``lra`` receives."""
    script = f"lra() {{ printf '%s\\0' \"$@\"; }}; {command}"
    run = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    return run.stdout.split("\0")[:-1]


@pytest.mark.parametrize("text", NAMES + BACKSLASHES)
def test_hydra_parses_quoted_value_as_one_string(text):
    assert compose(ReportOptions, [override("out", text)]).out == Path(text)
    parsed = OverridesParser.create().parse_override(override("out", text))
    assert not parsed.is_sweep_override() and isinstance(parsed.value(), str)


@pytest.mark.parametrize("name", NAMES)
def test_commands_in_messages_survive_the_shell(name):
    subcommand, *arguments = shell_arguments(report_command(name, Path(f"/tmp/{name}")))
    options = compose(ReportOptions, map(escape, arguments))
    assert (subcommand, options.study, options.runs) == ("report", name, Path(f"/tmp/{name}"))
    # The command of one run of a sweep.
    options = compose(SweepOptions, ["sweep=selection", override("study", name), override("runs", f"/{name}/runs")])
    words = ("task=listops", "attn=mean", override("study", study(options)), override("runs", options.runs))
    sizes = {"seed": 0, "folder": options.runs, "steps": 1, "eval_every": 1, "disk": 0}
    run = PlannedRun(overrides=(*words, "seeds=[0]"), task="listops", label="mean", **sizes)
    subcommand, *arguments = shell_arguments(run.command)
    experiment = compose(Experiment, arguments)
    assert subcommand == "train"
    assert experiment.home == Path(f"/{name}/runs") / name / "listops/mean"
    assert experiment.command_overrides == [*words, "seeds=[0]"]
    # The command in the message about missing data.
    folder = f"/data/{name}"
    words = ["task=listops", "attn=mean", override("source.release", folder), override("data.root", folder)]
    subcommand, *arguments = shell_arguments(compose(Experiment, words).data_command)
    prepare = compose(PrepareOptions, arguments)
    assert (subcommand, prepare.source.options["release"], prepare.data.root) == ("data", folder, Path(folder))


# Names that are valid Hydra syntax and so keep their special meaning when typed without Hydra's quotes.
HYDRA_SYNTAX = {"${HOME}", "${study} $(date)", "{a:1}", "a,b", "choice(1,2)"}
HYDRA_SYNTAX |= {"1_000", "1e3", "null", "nan", "-inf", "True"}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in HYDRA_SYNTAX])
def test_escape_quotes_names_that_are_not_hydra_syntax(name):
    for text in (name, f"/runs/{name}/seed-0"):
        assert compose(ReportOptions, [f"out={text}"]).out == Path(text)
        assert escape(escape(f"out={text}")) == escape(f"out={text}")


VALID = "attn=sdpa,luna seeds=[0,1] x={a:1} x=glob(*,exclude=psf*) x='a' -m --cfg=job ~x x= +x=choice(1,2) x=${y}"
VALID += r" overrides=['optim.lr=1','a=b'] x=a\=b x=[0,[1]"


def test_valid_hydra_syntax_is_not_escaped_and_overrides_are_quoted_once():
    for argument in VALID.split():
        assert escape(argument) == argument
    assert command_line("study transfer", "seeds=[0]") == "lra study transfer 'seeds=[0]'"
    assert command_line("report", "study=my study") == "lra report 'study=my study'"
    assert quote("it's") == "'it\\'s'" and quote("a b") == "a b" and quote(8) == "'8'"


def interrupt():
    # As a training does after SIGTERM.
    raise KeyboardInterrupt("stopped at step 3")


def kill_process(number=signal.SIGKILL):
    os.kill(os.getpid(), number)


FAILURES = {
    "attn=a: refused": lambda: "attn=a: refused",
    "attn=a: ended by SIGKILL, perhaps because memory ran out": kill_process,
    "attn=a: ended by SIGTERM": lambda: kill_process(signal.SIGTERM),
    "attn=a: stopped at step 3": interrupt,
    "attn=a: ended with exit status 1": lambda: sys.exit(2),
}


@pytest.mark.parametrize("message", ["", *FAILURES])
def test_worker_failure_is_confined_to_its_run(message):
    failures = {3: message} if message else {}
    with Workers() as workers:
        workers.run(3, "attn=a", FAILURES.get(message, str))
        assert workers.failures() == failures
        # Run 3 has already ended, so it does not start again.
        workers.run(3, "attn=a", kill_process)
        assert workers.failures() == failures
    assert not workers.folder.exists()


def test_broken_pool_fails_first_orphaned_run_and_restarts_the_others():
    runs = []

    def start():
        for number in range(4):
            workers.run(number, f"attn={number}", lambda number=number: runs.append(number) or "")
        if not (workers.folder / "again").exists():
            for name in ("again", "4.title", "5.title"):
                (workers.folder / name).write_text("attn=x")
            (workers.folder / "5.orphaned").write_text("7")
            (workers.folder / "4.orphaned").write_text("8")
            # Run 3 had already finished when its worker was killed, so it does not count as failed.
            (workers.folder / "3.orphaned").write_text("2")
            raise BrokenProcessPool
        workers.run(4, "attn=4", lambda: "")

    with Workers() as workers:
        workers.launch(start)
        assert workers.failures() == {5: f"attn=x: {killed_by(signal.SIGKILL)}"}
        with pytest.raises(BrokenProcessPool):
            workers.launch(lambda: (_ for _ in ()).throw(BrokenProcessPool))


def parent_pid(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^PPid:\t(\d+)", status, re.M)[1])


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads /proc")
@pytest.mark.parametrize("victim", ["run", "worker"])
def test_killed_process_fails_one_run_and_same_command_resumes(victim, data_root, tmp_path):
    words = ["task=listops", "budget=smoke", "attn=mean", "seeds=[0],[1],[2]", f"runs={tmp_path}", "optim.steps=120"]
    words += ["optim.eval_every=10", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "trainer.threads=1"]
    command = [sys.executable, "-m", "lra.train", "-m", *words]
    process = subprocess.Popen(command, cwd=CONF.parent, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait(process, lambda: list(tmp_path.rglob("last.ckpt")))
    (path, *_) = tmp_path.rglob("last.ckpt")
    owner = lock.holder(path.parent / lock.NAME)
    os.kill(owner.pid if victim == "run" else parent_pid(owner.pid), signal.SIGKILL)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1 and "Traceback" not in err, err
    summary, failure = err.splitlines()[-2:]
    seed = path.parent.name.removeprefix("seed-")
    assert summary == "lra: 1 run failed, the others finished"
    assert f"seeds=[{seed}]" in failure and failure.endswith("ended by SIGKILL, perhaps because memory ran out")
    records = {record_path.parent.name for record_path in tmp_path.rglob(record.NAME)}
    assert records == {"seed-0", "seed-1", "seed-2"} - {path.parent.name}
    resumed = subprocess.run(command, cwd=CONF.parent, capture_output=True, text=True, timeout=300)
    assert resumed.returncode == 0 and (path.parent / record.NAME).exists(), resumed.stderr
    assert f"seed {seed}: step " in resumed.stderr and f"seed {seed}: step 10/" not in resumed.stderr, resumed.stderr
