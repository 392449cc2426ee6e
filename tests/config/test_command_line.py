"""Command lines: names survive the shell and Hydra; a run of -m that is killed in a worker fails alone."""

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


def pasted(command):
    """The arguments of ``lra`` as a shell hands them over."""
    script = f"lra() {{ printf '%s\\0' \"$@\"; }}; {command}"
    run = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    return run.stdout.split("\0")[:-1]


@pytest.mark.parametrize("text", NAMES + BACKSLASHES)
def test_a_quoted_value_is_one_text_for_hydra(text):
    assert compose(ReportOptions, [override("out", text)]).out == Path(text)
    parsed = OverridesParser.create().parse_override(override("out", text))
    assert not parsed.is_sweep_override() and isinstance(parsed.value(), str)


@pytest.mark.parametrize("name", NAMES)
def test_the_command_of_the_report_can_be_pasted(name):
    subcommand, *arguments = pasted(report_command(name, Path(f"/tmp/{name}")))
    options = compose(ReportOptions, map(escape, arguments))
    assert (subcommand, options.study, options.runs) == ("report", name, Path(f"/tmp/{name}"))


@pytest.mark.parametrize("name", NAMES)
def test_the_command_of_one_run_of_a_sweep_can_be_pasted(name):
    options = compose(SweepOptions, ["sweep=selection", override("study", name), override("runs", f"/{name}/runs")])
    words = ("task=listops", "attn=mean", override("study", study(options)), override("runs", options.runs))
    sizes = {"seed": 0, "folder": options.runs, "steps": 1, "eval_every": 1, "disk": 0}
    run = PlannedRun(overrides=(*words, "seeds=[0]"), task="listops", label="mean", **sizes)
    subcommand, *arguments = pasted(run.command)
    experiment = compose(Experiment, arguments)
    assert subcommand == "train"
    assert experiment.home == Path(f"/{name}/runs") / name / "listops/mean"
    assert experiment.command_overrides == [*words, "seeds=[0]"]


@pytest.mark.parametrize("folder", ["/My Drive (1)/rel", *(f"/data/{name}" for name in NAMES)])
def test_the_command_for_missing_data_can_be_pasted(folder):
    words = ["task=listops", "attn=mean", override("source.release", folder), override("data.root", folder)]
    subcommand, *arguments = pasted(compose(Experiment, words).data_command)
    prepare = compose(PrepareOptions, arguments)
    assert subcommand == "data" and prepare.source.options["release"] == folder
    assert prepare.data.root == Path(folder)


# Typed without Hydra's quotes: what is left after the shell has removed its own.
GRAMMAR = {"${HOME}", "${study} $(date)", "{a:1}", "a,b", "choice(1,2)"}
GRAMMAR |= {"1_000", "1e3", "null", "nan", "-inf", "True"}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in GRAMMAR])
def test_a_name_needs_no_quotes_for_hydra_where_its_grammar_has_no_other_meaning(name):
    for text in (name, f"/runs/{name}/seed-0"):
        assert compose(ReportOptions, [f"out={text}"]).out == Path(text)
        assert escape(escape(f"out={text}")) == escape(f"out={text}")


@pytest.mark.parametrize(
    "argument",
    ["attn=sdpa,luna", "seeds=[0,1]", "x={a:1}", "x=glob(*,exclude=psf*)", "x='a'", "-m", "--cfg=job", "~x", "x=",
     "+x=choice(1,2)", "overrides=['optim.lr=1','a=b']", "x=${y}", "x=a\\=b", "x=[0,[1]"],
)  # fmt: skip
def test_what_hydra_can_read_or_should_explain_is_left_as_it_is(argument):
    assert escape(argument) == argument


def test_a_command_has_its_words_quoted_once():
    assert command_line("study transfer", "seeds=[0]") == "lra study transfer 'seeds=[0]'"
    assert command_line("report", "study=my study") == "lra report 'study=my study'"
    assert quote("it's") == "'it\\'s'" and quote("a b") == "a b" and quote(8) == "'8'"


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    "compute, failures",
    [
        (lambda: "", {}),
        (lambda: "attn=a: refused", {3: "attn=a: refused"}),
        (kill, {3: "attn=a: ended by SIGKILL, perhaps because memory ran out"}),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), {3: "attn=a: ended by SIGTERM"}),
    ],
)
def test_a_run_ends_alone(compute, failures):
    with Workers() as workers:
        workers.run(3, "attn=a", compute)
        assert workers.failures() == failures
        workers.run(3, "attn=a", kill)  # has ended before and is not run again
        assert workers.failures() == failures
    assert not workers.folder.exists()


def test_of_a_broken_pool_the_run_whose_worker_died_first_fails_and_the_others_are_run_again():
    runs = []

    def start():
        for number in range(4):
            workers.run(number, f"attn={number}", lambda number=number: runs.append(number) or "")
        if not (workers.folder / "again").exists():
            for name in ("again", "4.title", "5.title"):
                (workers.folder / name).write_text("attn=x")
            (workers.folder / "5.orphaned").write_text("7")
            (workers.folder / "4.orphaned").write_text("8")
            (workers.folder / "3.orphaned").write_text("2")  # ended in time
            raise BrokenProcessPool
        workers.run(4, "attn=4", lambda: "")

    with Workers() as workers:
        workers.launch(start)
        assert workers.failures() == {5: f"attn=x: {killed_by(signal.SIGKILL)}"}
        with pytest.raises(BrokenProcessPool):
            workers.launch(lambda: (_ for _ in ()).throw(BrokenProcessPool))


def parent(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^PPid:\t(\d+)", status, re.M)[1])


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads /proc")
@pytest.mark.parametrize("victim", ["run", "worker"])
def test_a_killed_process_of_train_is_one_failed_run_and_the_same_command_resumes_it(victim, data_root, tmp_path):
    words = ["task=listops", "budget=smoke", "attn=mean", "seeds=[0],[1],[2]", f"runs={tmp_path}", "optim.steps=120"]
    words += ["optim.eval_every=10", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "trainer.threads=1"]
    command = [sys.executable, "-m", "lra.train", "-m", *words]
    process = subprocess.Popen(command, cwd=CONF.parent, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait(process, lambda: list(tmp_path.rglob("last.ckpt")))
    (path, *_) = tmp_path.rglob("last.ckpt")
    owner = lock.holder(path.parent / lock.NAME)
    os.kill(owner.pid if victim == "run" else parent(owner.pid), signal.SIGKILL)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1 and "Traceback" not in err, err
    first, failure = err.splitlines()[-2:]
    seed = path.parent.name.removeprefix("seed-")
    assert first == "lra: 1 run failed, the others finished"
    assert f"seeds=[{seed}]" in failure and failure.endswith("ended by SIGKILL, perhaps because memory ran out")
    records = {found.parent.name for found in tmp_path.rglob(record.NAME)}
    assert records == {"seed-0", "seed-1", "seed-2"} - {path.parent.name}
    again = subprocess.run(command, cwd=CONF.parent, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0 and (path.parent / record.NAME).exists(), again.stderr
    assert f"seed {seed}: step " in again.stderr and f"seed {seed}: step 10/" not in again.stderr, again.stderr
