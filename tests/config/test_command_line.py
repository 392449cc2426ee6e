"""Command lines: quoting for the shell and for Hydra, killed runs of -m, and one-line errors for invalid overrides."""

import os
import re
import resource
import signal
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import get_type_hints

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from support.records import SMOKE
from support.training import wait

from data_prep.__main__ import PrepareOptions, prepare
from data_prep.show import show as examples
from lra.bench import gpu_check
from lra.bench.__main__ import bench
from lra.config import CONF
from lra.config.compose import compose
from lra.config.errors import explain, is_user_error
from lra.config.experiment import Experiment
from lra.config.quoting import command_line, escape, override, quote, report_command
from lra.config.workers import Workers, killed_by
from lra.io import lock
from lra.maps.__main__ import show as maps
from lra.report.__main__ import ReportOptions, report
from lra.runs import record
from lra.studies.dropin.__main__ import dropin
from lra.studies.inverses.__main__ import inverses
from lra.studies.lengths.__main__ import lengths
from lra.studies.probes.__main__ import probe
from lra.studies.transfer.__main__ import transfer
from lra.sweep.__main__ import sweep
from lra.sweep.options import SweepOptions
from lra.sweep.plan import PlannedRun, study
from lra.train.__main__ import train

NAMES = [
    "plain-1.2_x@y+z", "my study", "two  blanks", "a (1)", "f(1)", "choice(1,2)", "[draft] x", "x [0.9, 0.98]",
    "[0,1", "{x", "{a:1}", "50% & #1", "it's", 'a "b"', "'tis", 'it\'s "both"', "a=b", "optim.betas=[0.9, 0.98]",
    "a,b", "a;b|c*d?e!f<g>h`i`", "$HOME", "~x", "müller", "Größe 日本", "007", "1_000",
    "1e3", "null", "True", "nan", "-inf", "--help=x", "#1",
]  # fmt: skip
# Texts that are paths, but not names.
PATHS = ["a\\'b", "end\\", "a\\b", "\\${y}", "a\\\\${y}", "${HOME}", "${study} $(date)"]


def shell_arguments(command):
    """Run a command in bash and return the arguments that ``lra`` receives."""
    script = f"lra() {{ printf '%s\\0' \"$@\"; }}; {command}"
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split("\0")[:-1]


@pytest.mark.parametrize("text", NAMES + PATHS)
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
    assert subcommand == "train" and experiment.home == Path(f"/{name}/runs") / name / "listops/mean"
    assert experiment.command_overrides == [*words, "seeds=[0]"]
    # The command in the message about missing data.
    folder = f"/data/{name}"
    words = ["task=listops", "attn=mean", override("source.release", folder), override("data.root", folder)]
    subcommand, *arguments = shell_arguments(compose(Experiment, words).data_command)
    prepare = compose(PrepareOptions, arguments)
    assert (subcommand, prepare.source.options["release"], prepare.data.root) == ("data", folder, Path(folder))


# Names that are valid Hydra syntax and so keep their special meaning when typed without Hydra's quotes.
HYDRA_SYNTAX = {"{a:1}", "a,b", "choice(1,2)", "1_000", "1e3", "null", "nan", "-inf", "True"}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in HYDRA_SYNTAX])
def test_escape_quotes_names_that_are_not_hydra_syntax(name):
    for text in (name, f"/runs/{name}/seed-0"):
        assert compose(ReportOptions, [f"out={text}"]).out == Path(text)
        assert escape(escape(f"out={text}")) == escape(f"out={text}")


VALID = "attn=sdpa,luna seeds=[0,1] x={a:1} x=glob(*,exclude=psf*) x='a' -m --cfg=job ~x x= +x=choice(1,2) x=${y}"
VALID += r" --config-dir=../my-conf overrides=['optim.lr=1','a=b'] x=a\=b x=[0,[1]"


def test_valid_hydra_syntax_is_not_escaped_and_overrides_are_quoted_once():
    for argument in VALID.split():
        assert escape(argument) == argument
    assert command_line("study transfer", "seeds=[0]") == "lra study transfer 'seeds=[0]'"
    assert command_line("report", "study=my study") == "lra report 'study=my study'"
    assert quote("it's") == "'it\\'s'" and quote("a b") == "a b" and quote(8) == "'8'"


def interrupt():
    # As a training does after SIGTERM.
    raise KeyboardInterrupt("stopped at step 3")


def terminate():
    # Without the handler that a sweep of another test has set.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTERM)


FAILURES = {
    "attn=a: refused": lambda: "attn=a: refused",
    "attn=a: ended by SIGKILL, perhaps because memory ran out": lambda: signal.raise_signal(signal.SIGKILL),
    "attn=a: ended by SIGTERM": terminate,
    "attn=a: stopped at step 3": interrupt,
    # A full disk.
    "attn=a: ended with exit status 1": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)) or "refused",
}


@pytest.mark.parametrize("message", ["", *FAILURES])
def test_worker_failure_is_confined_to_its_run(message):
    failures = {3: message} if message else {}
    with Workers() as workers:
        workers.run(3, "attn=a", FAILURES.get(message, str))
        assert workers.failures() == failures
        # Run 3 has already ended, so it does not start again.
        workers.run(3, "attn=a", lambda: "it started again")
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
    parent = re.search(r"^PPid:\t(\d+)", Path(f"/proc/{owner.pid}/status").read_text(), re.M)[1]
    os.kill(owner.pid if victim == "run" else int(parent), signal.SIGKILL)
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


SMALL = "heads=1 head_dim=8 length=16"
LENGTHS = "tasks=temporal_order lengths=128 mechanisms=mean seeds=[0] budget=smoke plan=true measure=0"
PAPER = "budget=paper task=listops attn=sdpa "
DEVICES = "task=listops attn=mean trainer.devices="
MASKED = "task=listops attn=sdpa pretrain=masked "
# Entry point and overrides that keep it fast -> further overrides -> expected part of the error message.
ERRORS = {
    (train, "budget=smoke runs=runs"): {
        PAPER + "optim.steps=120": "optim.steps - 1 (119), not 1000: add optim.eval_every=60 optim.warmup=12",
        PAPER + "pretrain=masked ~pretrain.eval_every": "pretrain.eval_every is missing; pretrain=masked needs it",
        "task=listops attn=custom attn._target_=lra.attention.sdpa.SDPA attn.dropout=0.5": "attn.dropout is not in the "
        "yaml of attn but is an option of lra.attention.sdpa.SDPA: add it with +attn.dropout=<value>",
        "task=listops atn=sdpa": "atn: no such key; did you mean attn=<name>?",
        "task=listops attn=cur_abs trainer=gpu": "trainer.device=cuda, but torch sees no GPU; use trainer.device=cpu",
        "task=nope attn=cur_abs": "task=nope: no such choice; task is one of",
        "task=listops attn=cur_abs +attn.pinv.stesp=3": "stesp: no such key; did you mean steps? attn.pinv has init",
        "task=listops attn=[cur_abs,sdpa]": "attn takes one name, not a list; for several runs: -m attn=cur_abs,sdpa",
        "task=listops attn=cur_abs,sdpa": "attn=cur_abs,sdpa: several values need -m",
        "task=listops attn=cur_abs budget=huge": "budget must be one of paper, quick, quickstart, smoke, not 'huge'",
        "task=listops attn=mean +budgets.smoke.alowance=16": "no option reads +budgets.smoke.alowance; they read",
        "task=listops attn=mean +budgets.quick.allowance=16": "quick.allowance has no effect with budget=smoke",
        "task=listops attn=mean +budgets.smoke.allowance=-16": "smoke.allowance must be a whole number of at least 1",
        "task=listops attn=cur_abs seeds=[]": "seeds must be a list of different whole numbers",
        "task=listops attn=cur_abs optim.batch=8 optim.micro_batch=3": "optim.micro_batch must divide optim.batch 8",
        "task=listops attn=mean optim.cosine=[1,4]": "optim.cosine must be null with optim.schedule=one_cycle, not [1",
        "task=listops attn=mean optim.warmup_power=2": "optim.warmup_power must be 1 with optim.schedule=one_cycle",
        "experiment=board_recall attn=sdpa model.positions=none": "model.positions=none has no effect on model.embed",
        "task=listops attn=cur_abs data.mask=false": "data.pad must be fixed with data.mask=false, not auto",
        "task=listops attn=mean model.embed={_target_:lra.model.embed.TokenEmbedding,_partial_:true}": "the model of "
        "mean cannot be built: ",
        "task=listops attn=psf attn.channels=8 attn.project=false": "model.dim is 64, the mixer returns 8",
        "experiment=psf_listops model.layers=2": "model.layers must be 1, not 2: a block changes the width 512 to 128",
        "task=listops attn=cur_abs trainer.precision=fp16 trainer.device=cpu": "fp16 needs a GPU",
        "task=listops attn=cur_abs source.release=/nowhere": "/nowhere/basic_train.tsv is missing",
        "task=listops attn=cur_abs runs=/proc/nowhere": "cannot write to /proc/nowhere",
        "task=adding attn=cur_abs task.length=1000": "adding needs a length among 128, 256, 512",
        "task=adding attn=performer task.masked_id=0": "task.masked_id must be null with task.features, not 0",
        "task=adding attn=cur_abs task.metric=accuracy": "task.metric must be within_tolerance with task.loss=mse, not",
        "task=listops attn=cur_abs task.metric=balanced_accuracy": "task.outputs must be 2 with task.metric=balanced_",
        "task=listops attn=luna block=glu": "block must be prenorm with Luna, which is a block itself",
        "task=temporal_order task.length=128 attn=sdpa model.pool=cls task.vocab=6": "above 6, the id of the class",
        "task=adding attn=cur_abs model.pool=cls": "model.pool=cls needs a task with token ids",
        "task=genome attn=cur_abs": "source.dog=<path> source.donkey=<path>",
        "task=listops attn=cur_abs study=../../x": "study must be a name",
        "task=listops attn=cur_abs optim.betas.first=0.5": "optim.betas.first: optim.betas is a list; set it as a",
        "task=listops attn=cur_abs label_keys=[optim.stepz]": "label_keys: optim.stepz: no such key",
        "task=listops attn=cur_abs model.dim=10000000 model.heads=1": "GB to train, this machine has",
        "attn=cur_abs": "task is missing; it must be one of adding, ",
        f"{DEVICES}0": "trainer.devices must be a whole number of 1 or more, auto, launched, not 0",
        f"{DEVICES}3": "trainer.devices must divide optim.batch 8, got 3",
        f"{DEVICES}4 optim.micro_batch=2": "trainer.devices must divide optim.micro_batch 2, got 4",
        f"{DEVICES}2 pretrain=masked pretrain.batch=3": "must divide pretrain.batch 3, got 2",
        "task=listops attn=mean trainer=ddp": "torch sees none; set a number, such as trainer.devices=2",
        "task=listops attn=mean trainer=ddp_multinode": "nothing launched this process: torchrun",
        "task=image attn=sdpa pretrain=masked": "protocol.masked_pixel must be null with pretrain=masked, not 0",
        MASKED + "model.pool=cls": "model.pool must be mean, last or flatten with pretrain=masked, not cls",
        MASKED + "task=adding pretrain.loss=cross_entropy": "pretrain.loss must be l1 with task=adding_N128",
        MASKED + "pretrain.loss=l1": "pretrain.loss must be cross_entropy with task=listops",
        MASKED + "task=adding pretrain.mask_id=padding": "pretrain.mask_id must be own with task=adding_N128",
        MASKED + "pretrain.eval_every=4": "pretrain.eval_every must divide pretrain.steps 6, got 4",
        "task=listops attn=sparse_fixed attn.causal=true model.pool=cls": "a causal mechanism shows it no other token",
        "task=listops attn=sdpa pretrain=next": "pretrain=next: sdpa+next sees the tokens ahead; add attn.causal=true",
        "task=listops attn=s4d_lin pretrain=next": "add attn.bidirectional=false",
        "task=listops attn=cur_abs pretrain=next": "cur_abs+next sees the tokens ahead; use a mechanism with",
    },
    (sweep, f"{' '.join(SMOKE)} runs=runs"): {
        "sweep=selection tasks=[listops,nope]": "task=nope: no such choice; task is one of",
        "sweep=selection +sweep.grids.mine={attn:[cur_abs],attn.cuont:[3]}": "cuont: no such key; did you mean count?",
        "sweep=selection overrides=['optim.lr=-1']": "optim.lr must be above 0, not -1",
        "sweep=selection overrides=['study=x']": "overrides: study= is an option of the command itself",
        "sweep=board overrides=['optim.lr=0.1']": "overrides: the search decides optim.lr; set its rates by",
        "sweep=board mechanisms=['']": "mechanisms must be names of conf/attn with options, not ''",
        "sweep=selection mechanisms=[mean]": "such as sweep=board; in other sweeps, set sweep.grids",
        "sweep=board block=glu": "block=glu needs attn=<name>",
        "sweep=selection block=glu": "block works only in sweeps with a learning-rate search",
        "sweep=board tasks=[board_recall] attn=cur_abs ~attn.pinv.steps": "attn.pinv.steps is missing",
        "sweep=board tasks=[board_recall] attn=custom attn._target_=mine.Foo": "mine.Foo cannot be imported",
        "sweep=selection hydra/launcher=nope": "hydra/launcher=nope: no such choice; hydra/launcher is one of",
    },
    (bench, "mechanisms=[naive] runs=runs"): {
        "attn.count=3": "attn: no such key",
        "attn=custom": "attn=custom names no mechanism; name one with attn._target_=",
        "reference=naif": "reference: naif is not one of all, based, ",
        "attn=cur_abs ~attn.pinv.steps": "attn.pinv.steps is missing",
        "limit=0": "limit must be above 0, or null, not 0",
        "pads=[batch]": "pads needs batches=data; batches=random has full sequences",
        "trainer=ddp": "trainer.devices must be 1, not auto: a benchmark is one process",
        "overrides=['trainer.precision=bf16']": "overrides cannot set the trainer; use trainer=",
        "pads=[batch/0]": "pads must be fixed, batch, none or compact, or with micro-batches, such as batch/8",
    },
    (gpu_check.main, ""): {"minutes=25m": "minutes must be a number above 0: lra bench gpu-check minutes=25"},
    (prepare, ""): {
        "task=nope": "task=nope: no such choice; task is one of all, adding,",
        "task=listops force=true verify=true": "force=true replaces data and verify=true only compares them",
        "listops": "listops: an option has the form <name>=<value>, such as task=listops",
    },
    (examples, "task=adding budget=smoke"): {"out=/nowhere/made.png": "/nowhere/made.png cannot be written"},
    (lengths, f"{LENGTHS} runs=runs"): {
        "mechanisms=[mean,nope]": "attn=nope: no such choice; did you mean attn=none? attn is one of based, bigbird",
        "lengths=[100]": "needs a length among 128, 256",
        "mechanisms=[mean,mean]": "has the same run twice",
    },
    (inverses, "n=1 length=16 runs=runs"): {
        f"run={CONF.parent}/runs/published/paper/listops/mean": "has attn=mean, which inverts no matrix; name one of",
        "counts=[17]": "counts must be at most 16, the length, not 17",
    },
    (transfer, "attn=cur_abs run=x"): {"optim.lr=0.1": "optim.lr is an option of the fine-tuning; add steps="},
    (dropin, f"n=2 counts=[4] cost=0 {SMALL} runs=runs"): {
        "candidates=[cur_best]": "candidates must be one of all, cur_step, ",
        "counts=[17]": "counts must be at most 16, the tokens of gaussian-16, got 17",
        "sources=[]": "nothing to measure: name sources, run= or model=",
        "model=x": "model= and examples= go together",
    },
}
CASES = [(entry, base, words) for entry, base in ERRORS for words in ERRORS[entry, base]]


@pytest.mark.parametrize("entry, base, words", CASES)
def test_error_message_names_invalid_option_or_correction(entry, base, words, tmp_path, data_root, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    stop, *_ = call(entry, *base.split(), *words.split())
    assert stop.startswith("lra: ") and ERRORS[entry, base][words] in stop and "\n" not in stop
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


# Entry points, each with the options that it needs.
NEEDED = {train: "task=listops attn=mean", sweep: "sweep=selection", transfer: "attn=cur_abs run=x", probe: "run=x"}
NEEDED |= dict.fromkeys((bench, report, maps, prepare, lengths, inverses, dropin), "")


@pytest.mark.parametrize("entry", NEEDED, ids=lambda entry: entry.__module__)
@pytest.mark.parametrize("value", ["nan", "[[1]]", "{a:1}", "${nope}", "???"])
def test_wrong_value_of_each_option_is_a_one_line_error(entry, value):
    (kind, *_) = get_type_hints(entry.__wrapped__).values()
    options = OmegaConf.load(CONF / f"{kind.conf}.yaml")
    num_errors = 0
    for key in sorted(options.keys() - {"defaults", "hydra"}):
        words = [*NEEDED[entry].split(), f"{key}={value}"]
        try:
            compose(kind, words)
        except Exception as error:
            num_errors += 1
            assert is_user_error(error), words
            assert "\n" not in explain(error), words
    assert num_errors


def test_explanation_of_errors_that_caused_each_other_ends():
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    assert explain(first) == "second"
