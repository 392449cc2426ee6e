"""Every yaml composes, builds and trains for a step; labels, help and errors of the command line."""

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
from lra.config.compose import compose, compose_config
from lra.config.entry import delay_group_options, main
from lra.config.experiment import Experiment
from lra.config.manual import manual
from lra.config.recipes import choices
from lra.data.datamodule import Batch
from lra.runs.config_file import difference
from lra.train import lit as module
from lra.train.__main__ import train
from lra.train.plan import make_plan

ROOT = CONF.parent


def batch(cfg, width, rows=4):
    g = torch.Generator().manual_seed(0)
    shape = (rows, cfg.task.towers, width)
    mask = torch.arange(width) < torch.randint(width // 2, width + 1, shape[:2], generator=g)[..., None]
    if cfg.task.features is not None:
        return Batch(torch.randn(*shape, cfg.task.features, generator=g), mask, torch.rand(rows, generator=g))
    inputs = torch.randint(1, min(16, cfg.task.vocab), shape, generator=g) * mask
    return Batch(inputs, mask, torch.randint(0, cfg.task.outputs, (rows,), generator=g))


@pytest.mark.parametrize("name", MECHANISMS)
def test_mechanism_builds_and_training_step_reduces_loss(name):
    cfg, steps = config(name, "model.layers=1"), 1 if name in KERNELS else 3
    make_plan(cfg)
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
@pytest.mark.parametrize("task", choices("task"))
def test_task_builds(task, protocol):
    for budget in ("paper", "quick", "smoke"):
        cfg = experiment(f"task={task}", "attn=cur_abs", f"protocol={protocol}", f"budget={budget}")
        make_plan(cfg)
        cfg.task_data()


@pytest.mark.parametrize("name", choices("experiment"))
def test_experiment_builds_and_all_gradients_are_finite(name):
    words = [f"experiment={name}"]
    # All other experiments set attn themselves.
    if name.startswith(("curformer", "board", "listops_quick")):
        words.append("attn=cur_abs")
    for smaller in ((), ("budget=smoke", "model.layers=1")):
        cfg = experiment(*words, *smaller)
        make_plan(cfg)
    model = cfg.classifier()
    module.loss(model, batch(cfg, min(cfg.task.length, 128), rows=2), cfg.task.loss).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


COMPOSED = [
    "attn.count=8 model.pool=cls seeds=[3,4]",
    "attn.pinv.steps=3 optim.lr=1 data.pad=none study=2026",
    "task.length=64 budget=paper block=plain attn.count=null +attn.eps=0.5",
    "experiment=curformer_listops optim.lr=${optim.eps} runs='a b' data.root=${runs}",
]


@pytest.mark.parametrize("words", COMPOSED)
def test_two_stage_composition_matches_hydra_compose(words):
    words = [*SMOKE, "attn=cur_abs", *re.findall(r"(?:'.*?'|\S)+", words)]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        reference = hydra.compose("train", words, return_hydra_config=True)
        for _ in range(2):
            config, settings = compose_config("train", words)
            assert config == OmegaConf.masked_copy(reference, [key for key in reference if key != "hydra"])
            assert settings.overrides.task == reference.hydra.overrides.task and settings.mode == reference.hydra.mode
            assert settings.runtime.choices == reference.hydra.runtime.choices


CUSTOM_MODULE = """
from lra.attention.base import Attention
class AFT(Attention):
    def __init__(self, sizes, *, head_mix: int = 1, depth: int = 1):
        super().__init__(sizes)
class softmax(AFT): pass
"""


def test_custom_class_is_labelled_by_name_and_compared_by_module(tmp_path, monkeypatch):
    for name in ("own_one", "own_other"):
        (tmp_path / f"{name}.py").write_text(CUSTOM_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    setup = lambda path, *words: compose(Experiment, ["task=listops", "attn=custom", f"attn._target_={path}", *words])
    assert setup("own_one.AFT", "+attn.head_mix=2", "+attn.depth=3").label == "AFT-depth=3-head_mix=2"
    # The prefix distinguishes the class from the mechanism of the package with the same name.
    assert setup("own_one.softmax").label == "custom-softmax"
    assert experiment("task=listops", "attn=custom").label == "custom"
    first, second = setup("own_one.AFT"), setup("own_other.AFT")
    assert first.label == "AFT" and first.home == second.home
    assert difference(first.choices({}), second.choices({})) == "attn._target_: own_one.AFT -> own_other.AFT"


NEEDS_GPU = "attn=cur_abs +attn.requires=gpu +attn.otherwise=cur_sum"
UNAVAILABLE = {
    "attn=custom": "names no mechanism; name one with attn._target_",
    NEEDS_GPU: "attn=cur_sum computes the same without one",
    "attn=nystrom attn.impl=triton": "attn.impl=sdpa computes the same without one",
}


@pytest.mark.parametrize("mechanism", UNAVAILABLE)
def test_unavailable_mechanism_raises_and_is_skipped_in_multirun(mechanism, tmp_path, monkeypatch, call):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    words = ["task=listops", "budget=smoke", f"runs={tmp_path}", *mechanism.split()]
    assert UNAVAILABLE[mechanism] in call(train, *words)[0]
    stop, _, error = call(train, "-m", *words)
    assert stop is None and error.startswith("skipped: attn=") and UNAVAILABLE[mechanism] in error


def test_gpu_mechanism_runs_in_triton_interpreter(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    cfg = experiment(*SMOKE, *NEEDS_GPU.split())
    assert cfg.unavailable is None
    cfg.classifier()


def test_multirun_applies_option_to_every_mechanism(call):
    words = ["task=listops", "budget=smoke", "attn=cur_abs,cur_step", "attn.count=0", "+attn.cuont=3"]
    # The flag may stand between two overrides.
    stop, *_ = call(train, words[0], "-m", *words[1:-1])
    assert stop.startswith("lra: 2 runs failed") and stop.count("attn.count must be from 1 to") == 2
    assert "attn=cur_step attn.count=0" in stop
    assert delay_group_options(words) == [*words[:3], "attn.count=choice(0)", "+attn.cuont=choice(3)"]
    argv = ["-m", "attn=cur_abs", "attn.count=8", "optim.lr=1,2", "optim.steps=3", "~attn.pinv.steps", "runs=a\\=b"]
    assert delay_group_options(argv) == argv
    # A task also sets its source, an experiment most sections.
    assert delay_group_options(["task=adding,recall", "source.seed=1"])[1] == "source.seed=choice(1)"
    assert delay_group_options(["experiment=s5_text,lru_text", "attn.states=8"])[1] == "attn.states=choice(8)"


@pytest.mark.parametrize("value, ending", [("0", SystemExit), ("1", ValueError)])
def test_traceback_environment_variable_reraises_error(value, ending, monkeypatch):
    monkeypatch.setenv("LRA_TRACEBACK", value)
    monkeypatch.setattr(sys, "argv", ["lra", "task=listops", "budget=smoke", "source.train=many"])
    with pytest.raises(ending, match=r"source\.train must be"):
        main(PrepareOptions)(prepare.__wrapped__)()


def test_invalid_override_exits_with_one_message(call):
    stop, *outputs = call(prepare, "task=listops", "budget=smoke", "source.train=many")
    assert stop.startswith("lra: source.train must be") and "\n" not in stop and outputs == ["", ""]


@pytest.mark.parametrize("name", sorted(path.stem for path in CONF.glob("*.yaml")))
def test_help_lists_every_key_and_choice(name):
    text = manual(name)
    for key in OmegaConf.load(CONF / f"{name}.yaml"):
        assert key == "defaults" or f"\n{key}:" in text
    groups = {"train": ("attn", "task", "experiment"), "bench": ("preset",), "sweep": ("sweep",), "data": ("task",)}
    groups["checks"] = ("attn", "block", "task")
    for group in groups.get(name, ()):
        names = set(choices(group))
        assert names and names <= set(text.partition(f"\n{group}= ")[2].split())


def test_closed_pipe_exits_without_message():
    reader, writer = os.pipe()
    os.close(reader)
    imports = "from data_prep.__main__ import PrepareOptions; from lra.config.entry import main"
    code = f"{imports}; main(PrepareOptions)(lambda options: print(options))()"
    proc = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    os.close(writer)
    assert (proc.stderr, proc.returncode) == ("", 1)


@pytest.mark.parametrize("words", ["protocol.hold_out=9", "budgets.smoke.train=100", "source.train=99"])
def test_data_command_composes_source_of_the_run(words):
    run = experiment("task=text", "attn=sdpa", "budget=smoke", words)
    assert compose(PrepareOptions, run.data_overrides).source == run.source


def test_damaged_data_error_names_command_that_repairs_it(tmp_path, call):
    words = ["task=listops", "budget=smoke", f"data.root={tmp_path}"]
    assert call(prepare, *words)[0] is None
    (tokens,) = tmp_path.glob("listops-*/val.tokens.bin")
    tokens.write_bytes(tokens.read_bytes()[:-1])
    stop, *_ = call(train, *words, "attn=cur_abs", f"runs={tmp_path / 'runs'}")
    command = stop.partition("prepare it with: lra data ")[2].split()
    assert command == [*words, "force=true"] and call(prepare, *command)[0] is None
    assert "every checksum is correct" in call(prepare, *words, "verify=true")[2]
