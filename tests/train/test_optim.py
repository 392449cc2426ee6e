"""Learning rates, by group and step."""

from functools import partial

import pytest
import torch
from conftest import config
from torch import nn

from lra.train import optim

OPTIONS = {"lr": 0.004, "warmup": 100, "steps": 1100, "warmup_power": 1}
OPTIONS |= {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1, "clip_norm": None}


def test_linear():
    rate = partial(optim.linear, optim=OPTIONS)
    assert rate(0) == 1e-7 and rate(100) == pytest.approx(0.004) and rate(50) == pytest.approx(0.002, rel=1e-4)
    assert rate(600) == pytest.approx(0.002) and rate(1099) == pytest.approx(4e-6) and rate(1100) == 0
    assert optim.linear(50, OPTIONS | {"warmup_power": 2}) == pytest.approx(0.001, rel=1e-3)
    assert optim.linear(0, OPTIONS | {"warmup": 0}) == 0.004


def test_cosine_is_torchs_behind_the_warm_up():
    assert optim.cosine(0, OPTIONS) == 1e-7 and optim.cosine(100, OPTIONS) == pytest.approx(0.004)
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.004)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=1000)
    for step in range(100, 1101):
        assert optim.cosine(step, OPTIONS) == pytest.approx(optimiser.param_groups[0]["lr"], rel=1e-6, abs=1e-12), step
        optimiser.step()
        schedule.step()


class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.rates = {"a": 0.1, "b": 0.1, "c": 0.5}
        self.a, self.b, self.c, self.d = (nn.Parameter(torch.ones(1)) for _ in range(4))


def test_a_module_names_the_parameters_with_rates_of_their_own():
    model = nn.Sequential(nn.Linear(1, 1), Slow(), Slow())
    main, slow, half = optim.adamw(model, OPTIONS).param_groups
    assert [len(group["params"]) for group in (main, slow, half)] == [4, 4, 2]
    assert (main["lr"], slow["lr"], half["lr"]) == (0.004, 0.0004, 0.002)
    assert (main["weight_decay"], slow["weight_decay"], half["weight_decay"]) == (0.1, 0, 0)
    assert {id(p) for p in main["params"]} == {id(p) for p in (*model[0].parameters(), model[1].d, model[2].d)}
    assert len(optim.adamw(model[0], OPTIONS).param_groups) == 1


@pytest.mark.parametrize("kind", ["one_cycle", "linear", "cosine", "constant"])
def test_every_schedule_keeps_the_ratio_of_the_rates(kind):
    options = OPTIONS | {"schedule": kind, "steps": 20, "warmup": 5}
    optimiser = optim.adamw(nn.Sequential(nn.Linear(1, 1), Slow()), options)
    schedule = optim.schedule(optimiser, options, cycle_momentum=True)
    rates = []
    for _ in range(19):
        main, *rest = (group["lr"] for group in optimiser.param_groups)
        assert rest == pytest.approx([0.1 * main, 0.5 * main], rel=1e-3)  # one-cycle ends at lr / 1e4 / 25
        rates.append(main)
        optimiser.step()
        schedule.step()
    if kind == "constant":
        ramp = [1e-7 + (0.004 - 1e-7) * step / 5 for step in range(5)]
        assert rates == pytest.approx([*ramp, *[0.004] * 14], rel=1e-6)
        assert optim.schedule(optimiser, options | {"warmup": 0}, cycle_momentum=True) is None


@pytest.mark.parametrize(
    ("words", "own", "decayed"),
    [
        ("s4d_lin", {"log_dt", "log_A_real", "A_imag", "B"}, set()),
        ("s5", {"decay", "frequency", "log_step", "b"}, set()),
        ("s5 attn.b_optim=state_decay", {"decay", "frequency", "log_step"}, {"b"}),
        ("s5 attn.b_optim=main attn.step_optim=main", {"decay", "frequency"}, set()),
        ("lru", {"nu", "theta", "gamma", "b"}, set()),
        ("long_conv", {"weights"}, set()),
    ],
)
def test_states_learn_at_their_own_rate(words, own, decayed):
    model = config(words, "attn.rate=0.25").classifier()
    names = {id(p): name.rpartition(".")[2] for name, p in model.named_parameters()}
    main, *rest = optim.adamw(model, OPTIONS).param_groups
    groups = {decay: set() for decay in (0, 0.1)}
    for group in rest:
        assert group["lr"] == 0.001
        groups[group["weight_decay"]] |= {names[id(p)] for p in group["params"]}
    assert groups == {0: own, 0.1: decayed} and (main["lr"], main["weight_decay"]) == (0.004, 0.1)
    assert not (own | decayed) & {names[id(p)] for p in main["params"]}


@pytest.mark.parametrize("lr", [3e-4, 1e-3, 4e-3, 1e-2])
def test_rates_of_their_own_are_at_most_own_lr_max(lr):
    capped = OPTIONS | {"lr": lr, "own_lr_max": 1e-3}
    main, slow = optim.adamw(config("s4d_lin").classifier(), capped).param_groups
    assert main["lr"] == lr and slow["lr"] == min(lr, 1e-3)
