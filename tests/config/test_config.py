"""Every yaml composes, builds and takes a training step; labels; what a wrong word gets."""

import os
import re
import subprocess
import sys

import hydra
import pytest
import torch
from conftest import KERNELS, MECHANISMS, SMOKE, config, experiment
from omegaconf import OmegaConf

from data_prep.__main__ import PrepareOptions, prepare
from lra.config import CONF
from lra.config.compose import compose, composed
from lra.config.entry import follow, main, manual
from lra.config.experiment import Experiment
from lra.data.datamodule import Batch
from lra.runs.config_file import difference
from lra.train import lit as module
from lra.train.__main__ import train
from lra.train.plan import resolve

ROOT = CONF.parent
TASKS = sorted(path.stem for path in (CONF / "task").glob("*.yaml"))
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


def batch(cfg, width, rows=4, seed=0):
    g = torch.Generator().manual_seed(seed)
    shape = (rows, cfg.task.towers, width)
    mask = torch.arange(width) < torch.randint(width // 2, width + 1, shape[:2], generator=g)[..., None]
    if cfg.task.features is not None:
        return Batch(torch.randn(*shape, cfg.task.features, generator=g), mask, torch.rand(rows, generator=g))
    inputs = torch.randint(1, min(16, cfg.task.vocab), shape, generator=g) * mask
    return Batch(inputs, mask, torch.randint(0, cfg.task.outputs, (rows,), generator=g))


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_builds_and_takes_a_step(name):
    cfg, steps = config(name), 1 if name in KERNELS else 3
    resolve(cfg)
    torch.manual_seed(0)
    model = cfg.classifier()
    example = batch(cfg, 128, rows=1 if name in KERNELS else 4)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    before = module.loss(model.eval(), example)
    for _ in range(steps):
        optimiser.zero_grad()
        module.loss(model.train(), example).backward()
        optimiser.step()
    assert module.loss(model.eval(), example) < before


@pytest.mark.parametrize("protocol", ["paper", "clean"])
@pytest.mark.parametrize("task", TASKS)
def test_every_task_builds_and_its_smoke_schedule_runs_to_its_end(task, protocol):
    for budget in ("paper", "quick", "smoke"):
        cfg = experiment(f"task={task}", "attn=cur_abs", f"protocol={protocol}", f"budget={budget}")
        resolve(cfg)
        cfg.task_data()
    training = module.LitClassifier.of(cfg, cfg.classifier(), seed=0)
    made = training.configure_optimizers()
    rates = []
    for _ in range(cfg.optim.steps):
        rates.append(made["optimizer"].param_groups[0]["lr"])
        made["optimizer"].step()
        made["lr_scheduler"]["scheduler"].step()
    assert max(rates) <= cfg.optim.lr * (1 + 1e-9) and min(rates) > 0


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_composes_builds_and_takes_a_step(name):
    words = [f"experiment={name}"]
    if name.startswith(("curformer", "board", "listops_quick")):  # the others choose a mechanism
        words.append("attn=cur_abs")
    for smaller in ((), ("budget=smoke", "model.layers=1")):
        cfg = experiment(*words, *smaller)
        resolve(cfg)
    model = cfg.classifier()
    module.loss(model, batch(cfg, min(cfg.task.length, 128), rows=2), cfg.task.loss).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    "words",
    [
        "attn.count=8 model.pool=cls seeds=[3,4]",
        "attn.pinv.steps=3 optim.lr=1 data.pad=none study=2026",
        "task.length=64 budget=paper block=plain attn.count=null +attn.eps=0.5",
        "experiment=curformer_listops optim.lr=${optim.eps} runs='a b' data.root=${runs}",
    ],
)
def test_groups_and_then_values_are_what_hydra_composes_at_once(words):
    words = [*SMOKE, "attn=cur_abs", *re.findall(r"(?:'.*?'|\S)+", words)]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        whole = hydra.compose("train", words, return_hydra_config=True)
        for _ in range(2):
            config, own = composed("train", words)
            assert config == OmegaConf.masked_copy(whole, [key for key in whole if key != "hydra"])
            assert own.overrides.task == whole.hydra.overrides.task and own.mode == whole.hydra.mode
            assert own.runtime.choices == whole.hydra.runtime.choices


OWN = """
from lra.attention.base import Attention
class AFT(Attention):
    def __init__(self, sizes, *, head_mix: int = 1, depth: int = 1):
        super().__init__(sizes)
class softmax(AFT): pass
"""


def test_custom_classes_are_labelled_by_their_names_and_distinguished_by_their_modules(tmp_path, monkeypatch):
    for name in ("own_one", "own_other"):
        (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    made = lambda path, *words: compose(Experiment, ["task=listops", "attn=custom", f"attn._target_={path}", *words])
    assert made("own_one.AFT", "+attn.head_mix=2", "+attn.depth=3").label == "AFT-depth=3-head_mix=2"
    assert made("own_one.softmax").label == "custom-softmax"  # not the published mechanism
    assert experiment("task=listops", "attn=custom").label == "custom"
    first, second = made("own_one.AFT"), made("own_other.AFT")
    assert first.label == "AFT" and first.home == second.home
    assert difference(first.choices({}), second.choices({})) == "attn._target_: own_one.AFT -> own_other.AFT"


NEEDS_GPU = ("attn=cur_abs", "+attn.requires=gpu", "+attn.otherwise=cur_sum")


@pytest.mark.parametrize(
    ("mechanism", "reason"),
    [
        (["attn=custom"], "names no mechanism; name one with attn._target_"),
        (NEEDS_GPU, "attn=cur_sum computes the same without one"),
    ],
)
def test_a_mechanism_that_cannot_run_here_is_an_error_or_skipped(mechanism, reason, tmp_path, monkeypatch, call):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    words = ["task=listops", "budget=smoke", f"runs={tmp_path}", *mechanism]
    assert reason in call(train, *words)[0]
    stop, _, error = call(train, "-m", *words)
    assert stop is None and error.startswith("skipped: attn=") and reason in error


def test_a_mechanism_of_a_gpu_runs_in_tritons_interpreter(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    cfg = config("cur_abs", *NEEDS_GPU[1:])
    assert cfg.unavailable is None
    cfg.classifier()


def test_an_option_said_once_holds_for_every_mechanism_of_a_sweep(call):
    words = ["task=listops", "budget=smoke", "attn=cur_abs,cur_step", "attn.count=0", "+attn.cuont=3"]
    stop, *_ = call(train, "-m", *words[:-1])
    assert stop.startswith("lra: 2 runs failed") and stop.count("attn.count must be from 1 to") == 2
    assert "attn=cur_step attn.count=0" in stop
    assert follow(words) == [*words[:3], "attn.count=choice(0)", "+attn.cuont=choice(3)"]
    others = ["-m", "attn=cur_abs", "attn.count=8", "optim.lr=1,2", "optim.steps=3", "~attn.pinv.steps", "runs=a\\=b"]
    assert follow(others) == others


@pytest.mark.parametrize("value, ending", [("0", SystemExit), ("1", ValueError)])
def test_a_traceback_is_shown_if_it_is_asked_for(value, ending, monkeypatch):
    monkeypatch.setenv("LRA_TRACEBACK", value)
    monkeypatch.setattr(sys, "argv", ["lra", "task=listops", "budget=smoke", "source.train=many"])
    with pytest.raises(ending, match=r"source\.train must be"):
        main(PrepareOptions)(prepare.__wrapped__)()


def test_a_wrong_word_ends_a_process_with_status_1_and_one_line_though_it_has_no_stdout():
    """As a service has none: descriptor 1 is closed before Python starts."""
    words = ["task=listops", "budget=smoke", "source.train=many"]  # of the entry point that starts the soonest
    command = ["bash", "-c", 'exec "$@" >&-', "_", sys.executable, "-m", "data_prep", *words]
    got = subprocess.run(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert got.returncode == 1 and got.stderr.startswith("lra: source.train must be") and got.stderr.count("\n") == 1


@pytest.mark.parametrize("name", sorted(path.stem for path in CONF.glob("*.yaml")))
def test_help_shows_every_key_and_every_choice(name):
    text = manual(name)
    for key in OmegaConf.load(CONF / f"{name}.yaml"):
        assert key == "defaults" or f"\n{key}:" in text
    named = {"train": ("attn", "task", "experiment"), "bench": ("preset",), "sweep": ("sweep",), "data": ("task",)}
    for group in named.get(name, ()):
        choices = {path.stem for path in (CONF / group).glob("*.yaml")}
        assert choices and choices <= set(text.partition(f"\n{group}= ")[2].split())


def test_help_needs_neither_other_words_nor_a_stdout(monkeypatch, call):
    assert "task= adding chain" in call(train, "--help")[1]
    monkeypatch.setattr(sys, "stdout", None)
    assert call(train, "--help")[0] is None


def test_a_closed_pipe_ends_a_command_without_a_line():
    reader, writer = os.pipe()
    os.close(reader)
    imports = "from data_prep.__main__ import PrepareOptions; from lra.config.entry import main"
    code = f"{imports}; main(PrepareOptions)(lambda options: print(options))()"
    got = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    os.close(writer)
    assert (got.stderr, got.returncode) == ("", 1)


@pytest.mark.parametrize("words", ["protocol.hold_out=9", "budgets.smoke.train=100", "source.train=99"])
def test_the_command_for_missing_data_makes_those_of_the_run(words):
    run = experiment("task=text", "attn=sdpa", "budget=smoke", words)
    assert compose(PrepareOptions, run.data_overrides).source == run.source


def test_damaged_data_names_the_command_that_mends_it(tmp_path, call):
    words = ["task=listops", "budget=smoke", f"data.root={tmp_path}"]
    assert call(prepare, *words)[0] is None
    (tokens,) = tmp_path.glob("listops-*/val.tokens.bin")
    tokens.write_bytes(tokens.read_bytes()[:-1])
    stop, *_ = call(train, *words, "attn=cur_abs", f"runs={tmp_path / 'runs'}")
    command = stop.partition("prepare it with: lra data ")[2].split()
    assert command == [*words, "force=true"]
    assert call(prepare, *command)[0] is None
    assert "every checksum is correct" in call(prepare, *words, "verify=true")[2]
