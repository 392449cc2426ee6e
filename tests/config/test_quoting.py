"""Quoting: a printed command is pasted into a shell and parsed by Hydra, and any name survives both."""

import subprocess
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from data_prep.__main__ import PrepareOptions
from lra.config.compose import compose
from lra.config.experiment import Experiment
from lra.config.quoting import command_line, escape, override, quote, report_command
from lra.report.__main__ import ReportOptions
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
