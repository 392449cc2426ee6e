"""Tests that a training step never waits for the device, and of learning rates by parameter group and step."""

import contextlib
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import KERNELS, MECHANISMS, config, experiment, set_up, slow
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lra.config.experiment import Experiment
from lra.config.recipes import choices
from lra.data.datamodule import Batch
from lra.model.pretrainer import draw_holes
from lra.ops.untraced import FUNCTIONS
from lra.train import optim
from lra.train.lit import LitClassifier, seed_device

FEW = ("cur_abs", "sdpa", "nystrom", "luna", "performer")
PAD = ("batch", "compact")
OPTIONS = {"lr": 0.004, "warmup": 100, "steps": 1100, "warmup_power": 1}
OPTIONS |= {"betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1, "clip_norm": None}


# On the meta device, reading a value or selecting by a mask fails; a GPU would wait for all work. Not covered: Triton
# kernels, and values read once per step or evaluation (``Pretrainer.sum_loss``, scores of ``LitClassifier``).
class NoWaiting(TorchDispatchMode):
    """Fails on a copy between CPU and device for which the host waits; reading a meta tensor raises an error anyway."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and kwargs.get("device", args[0].device).type != args[0].device.type:
            assert kwargs.get("non_blocking"), f"{func} from {args[0].device} to {kwargs['device']}"
            self.copies += 1
        devices = {x.device.type for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)}
        assert len(devices) < 2, f"{func} copies a number to the device"
        # An operator of this package: its function may wait too.
        function = FUNCTIONS.get(func.name())
        with self if function else contextlib.nullcontext():
            return (function or func)(*args, **kwargs)

    copies = 0


@pytest.fixture(autouse=True)
def without_autocast(monkeypatch):
    """Disable autocast: ``full_precision`` switches it off for the device of its tensors, and meta has none."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())


def module_and_data(name, device, data_root, *words):
    cfg = config(name, f"data.root={data_root}", "task.masked_id=5", "model.pool=cls", *words)
    data = set_up(cfg.task_data())
    data.splits = {key: split.to(device) for key, split in data.splits.items()}
    with torch.device(device):
        model = cfg.classifier()
    module = LitClassifier.of(cfg, model, seed=0)
    module.on_fit_start()
    module.bad_step, module.loss_sum = module.bad_step.to(device), module.loss_sum.to(device)
    return module.train(), data, cfg


def step(module, data, number):
    module.training_step(data.gather("train", np.arange(8 * number, 8 * number + 8), slice(None)), number).backward()


@pytest.mark.parametrize("pad", PAD)
@pytest.mark.parametrize("name", FEW)
def test_training_step_does_not_wait_for_device(name, pad, data_root):
    """On batches of a data set; ``test_no_mechanism_waits_for_device`` covers every mechanism."""
    module, data, _ = module_and_data(name, "meta", data_root, f"data.pad={pad}")
    with NoWaiting() as mode:
        step(module, data, 0)
    # The indices of the examples.
    assert mode.copies == 1


def test_epoch_order_is_copied_to_device_once(data_root):
    _, data, _ = module_and_data("sdpa", "meta", data_root, "optim.micro_batch=4")
    batches = iter(data._training_batches())
    with NoWaiting() as mode:
        devices = {next(batches).inputs.device.type for _ in range(10)}
    assert mode.copies == 1 and devices == {"meta"}


def test_no_waiting_mode_detects_synchronisation():
    x = torch.ones(3, device="meta")
    for wait in (lambda: x.sum().item(), lambda: x.nonzero(), lambda: x[x > 0], lambda: x.cpu()):
        with pytest.raises((RuntimeError, NotImplementedError, AssertionError)), NoWaiting():
            wait()
    with pytest.raises(AssertionError, match="_to_copy"), NoWaiting():
        torch.ones(3).to("meta")


@pytest.mark.gpu
@pytest.mark.parametrize("pad", PAD)
@pytest.mark.parametrize("name", FEW)
def test_training_step_does_not_synchronise_gpu(name, pad, data_root):
    module, data, cfg = module_and_data(name, "cuda", data_root, f"data.pad={pad}")
    optimiser = optim.adamw(module.model, dict(cfg.optim))
    for number in range(3):
        # The first step loads kernels, for which it may wait.
        torch.cuda.set_sync_debug_mode("error" if number else "default")
        try:
            seed_device(number, torch.device("cuda"))
            step(module, data, number)
            optimiser.step()
            optimiser.zero_grad()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_seed_device_equals_torch_manual_seed():
    for seed in (0, 5, 2**64 - 1):
        torch.manual_seed(seed)
        expected = torch.rand(4)
        seed_device(seed, torch.device("cpu"))
        assert torch.equal(torch.rand(4), expected)


def meta_batch(task) -> Batch:
    empty = lambda *shape, dtype=torch.float32: torch.empty(shape, dtype=dtype, device="meta")
    shape = 2, task.towers, task.length
    inputs = empty(*shape, dtype=torch.int64) if task.vocab else empty(*shape, task.features or 1)
    label = empty(2, dtype=torch.int64 if task.loss == "cross_entropy" else torch.float32)
    return Batch(inputs, empty(*shape, dtype=torch.bool), label, None)


def train_and_evaluate(experiment: Experiment) -> None:
    model, batch = experiment.meta_model, meta_batch(experiment.task)
    lit = LitClassifier.of(experiment, model.train(), seed=0)
    with NoWaiting() as mode:
        lit.batch_loss(batch).backward()
    assert mode.copies == 0 and all(parameter.grad is not None for parameter in model.parameters())
    model.eval()
    with torch.no_grad():
        lit.validation_step(batch, 0)


@pytest.mark.parametrize("attn", [name for name in MECHANISMS if name not in KERNELS])
def test_no_mechanism_waits_for_device(attn):
    train_and_evaluate(config(attn))


# Slow: Mamba's scan takes a Python step per token. Its other experiments differ only in sizes.
SCANS = ("mamba_text", "mamba_retrieval", "mamba_image", "mamba_pathfinder", "mamba_pathfinder_x")


@pytest.mark.parametrize("name", [slow(name) if name in SCANS else name for name in choices("experiment")])
def test_no_experiment_waits_for_device(name):
    mechanism = ["attn=cur_abs"] if name.startswith(("curformer", "board", "listops_quick")) else []
    cfg = experiment(f"experiment={name}", *mechanism)
    # Two layers and 1,024 tokens suffice: more of them run the same operators.
    model = cfg.model.replace(layers=min(2, cfg.model.layers))
    cfg = cfg.replace(model=model, task=cfg.task.replace(length=min(1024, cfg.task.length)))
    train_and_evaluate(cfg)

    # clip_norm excludes the fused AdamW, which has no meta implementation.
    options = dict(cfg.optim) | {"clip_norm": 1.0}
    optimiser = optim.adamw(cfg.meta_model, options)
    lr_schedule = optim.schedule(optimiser, options, cycle_momentum=False)
    torch.nn.utils.clip_grad_norm_(cfg.meta_model.parameters(), 1.0)
    optimiser.step()
    if lr_schedule is not None:
        lr_schedule.step()

    if cfg.pretrained:
        with torch.device("meta"):
            model = cfg.pretrainer()
        batch, ratio = meta_batch(cfg.task), cfg.pretrain.ratio
        holes = draw_holes(ratio, batch.inputs, batch.mask) if ratio else None
        model.predict(model(batch.inputs, batch.mask, holes)).sum().backward()


def test_linear_schedule_values():
    # The warm-up starts at 1e-7, so its middle is 5e-8 above half of the rate.
    rates = {0: 1e-7, 50: 0.00200005, 100: 0.004, 600: 0.002, 1099: 4e-6, 1100: 0}
    assert {step: optim.linear(step, OPTIONS) for step in rates} == pytest.approx(rates, rel=1e-9, abs=0)
    assert optim.linear(50, OPTIONS | {"warmup_power": 2}) == pytest.approx(0.001000075, rel=1e-9)
    assert optim.linear(0, OPTIONS | {"warmup": 0}) == 0.004


def test_cosine_schedule_matches_torch_after_warmup():
    assert optim.cosine(0, OPTIONS) == 1e-7 and optim.cosine(100, OPTIONS) == pytest.approx(0.004)
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.004)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=1000)
    for step in range(100, 1101):
        assert optim.cosine(step, OPTIONS) == pytest.approx(optimiser.param_groups[0]["lr"], rel=1e-6, abs=1e-12), step
        optimiser.step()
        schedule.step()
    # Between the warm-up and a later cosine the rate is constant.
    options = OPTIONS | {"lr": 1, "warmup": 2, "steps": 8, "cosine": (4, 6)}
    assert [optim.cosine(step, options) for step in range(2, 9)] == pytest.approx([1, 1, 1, 0.5, 0, 0, 0])


class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.rates = {"a": 0.1, "b": 0.1, "c": 0.5}
        self.a, self.b, self.c, self.d = (nn.Parameter(torch.ones(1)) for _ in range(4))


def test_module_rates_define_parameter_groups():
    model = nn.Sequential(nn.Linear(1, 1), Slow(), Slow())
    groups = optim.adamw(model, OPTIONS).param_groups
    assert [len(group["params"]) for group in groups] == [4, 4, 2]
    assert [group["lr"] for group in groups] == [0.004, 0.0004, 0.002]
    assert [group["weight_decay"] for group in groups] == [0.1, 0, 0]
    assert {(group["betas"], group["eps"]) for group in groups} == {((0.8, 0.99), 1e-6)}
    assert {id(p) for p in groups[0]["params"]} == {id(p) for p in (*model[0].parameters(), model[1].d, model[2].d)}
    assert len(optim.adamw(model[0], OPTIONS).param_groups) == 1
    # own_lr_max caps the rates of modules, but not the main one.
    capped = optim.adamw(model, OPTIONS | {"own_lr_max": 1e-3}).param_groups
    assert [group["lr"] for group in capped] == [0.004, 0.0004, 0.001]
    groups = optim.adamw(nn.Sequential(nn.Linear(1, 1), nn.LayerNorm(1)), OPTIONS | {"bias_decay": False}).param_groups
    assert [(len(group["params"]), group["weight_decay"]) for group in groups] == [(1, 0.1), (3, 0)]
    # Embedding and head keep their decay.
    parts = nn.ModuleDict({name: nn.LayerNorm(1) for name in ("embed", "blocks", "head")})
    groups = optim.adamw(parts, OPTIONS | {"bias_decay": False}).param_groups
    assert [(len(group["params"]), group["weight_decay"]) for group in groups] == [(4, 0.1), (2, 0)]


@pytest.mark.parametrize("kind", ["one_cycle", "linear", "cosine", "constant"])
def test_schedule_preserves_ratio_of_group_rates(kind):
    options = OPTIONS | {"schedule": kind, "steps": 20, "warmup": 5}
    optimiser = optim.adamw(nn.Sequential(nn.Linear(1, 1), Slow()), options)
    schedule = optim.schedule(optimiser, options, cycle_momentum=True)
    lr_schedule = []
    for _ in range(19):
        main, *rest = (group["lr"] for group in optimiser.param_groups)
        # rel=1e-3 because the last rates are tiny: one-cycle ends at lr / 25 / 1e4.
        assert rest == pytest.approx([0.1 * main, 0.5 * main], rel=1e-3)
        lr_schedule.append(main)
        optimiser.step()
        schedule.step()
    if kind == "one_cycle":
        first, quarter, *_, peak = lr_schedule[:5]
        assert quarter == pytest.approx(0.75 * first + 0.25 * peak) and peak == pytest.approx(0.004)
        # The momentum has returned from its minimum at the peak.
        assert optimiser.param_groups[0]["betas"][0] == pytest.approx(0.95)
    if kind == "constant":
        ramp = [1e-7 + (0.004 - 1e-7) * step / 5 for step in range(5)]
        assert lr_schedule == pytest.approx([*ramp, *[0.004] * 14], rel=1e-6)
        assert optim.schedule(optimiser, options | {"warmup": 0}, cycle_momentum=True) is None


@pytest.mark.parametrize(
    ("words", "own", "decayed"),
    [
        ("s4d_lin", {"log_dt", "log_A_real", "A_imag", "B"}, set()),
        ("s5", {"decay", "frequency", "log_step", "b"}, set()),
        ("s5 attn.b_optim=state_decay", {"decay", "frequency", "log_step"}, {"b"}),
        ("s5 attn.b_optim=main attn.step_optim=main", {"decay", "frequency"}, set()),
        ("lru", {"nu", "theta", "gamma", "b"}, set()), ("long_conv", {"weights"}, set()),
    ],
)  # fmt: skip
def test_state_parameters_have_separate_rate_and_decay(words, own, decayed):
    model = config(words, "attn.rate=0.25").classifier()
    names = {id(p): name.rpartition(".")[2] for name, p in model.named_parameters()}
    main, *rest = optim.adamw(model, OPTIONS).param_groups
    groups = {decay: set() for decay in (0, 0.1)}
    for group in rest:
        assert group["lr"] == 0.001
        groups[group["weight_decay"]] |= {names[id(p)] for p in group["params"]}
    assert groups == {0: own, 0.1: decayed} and (main["lr"], main["weight_decay"]) == (0.004, 0.1)
    assert not (own | decayed) & {names[id(p)] for p in main["params"]}


def test_every_micro_batch_step_rank_and_seed_has_its_own_random_numbers():
    draws = set()
    for micro_batch, step, rank, seed in itertools.product(range(2), repeat=4):
        lit = SimpleNamespace(seed=seed, global_step=step, global_rank=rank, device=torch.device("cpu"))
        lit.trainer = SimpleNamespace(accumulate_grad_batches=2)
        lit.optimizers = lambda: SimpleNamespace(param_groups=[{"lr": 0.1}])
        LitClassifier.on_train_batch_start(lit, None, micro_batch)
        draws.add(torch.rand(()).item())
    assert len(draws) == 16
