"""The precision of a run is the one that is used, and what is recorded."""

from pathlib import Path

import pytest
import torch
from conftest import config

from lra.runs import identity
from lra.train import machine
from lra.train.__main__ import train
from lra.train.plan import resolve


@pytest.mark.parametrize("amx", [False, True])
@pytest.mark.parametrize("asked", ["fp32", "bf16"])
@pytest.mark.parametrize("force", [False, True])
def test_bf16_on_a_cpu_needs_amx_or_force(monkeypatch, amx, asked, force):
    monkeypatch.setattr(machine, "has_amx", lambda: amx)
    made = config("cur_abs", f"trainer.precision={asked}", f"trainer.force_bf16={force}", "trainer.device=cpu")
    plan = resolve(made)
    used = "bf16" if asked == "bf16" and (amx or force) else "fp32"
    assert plan.experiment.trainer.precision == used and plan.widened == (used != asked)
    assert made.trainer.precision == asked  # the caller's own is not changed
    plain = resolve(config("cur_abs", f"trainer.precision={used}", "trainer.force_bf16=true", "trainer.device=cpu"))
    prints = [identity.fingerprint(made.experiment.choices({})) for made in (plan, plain)]
    assert prints[0] == prints[1]


def test_a_gpu_keeps_bf16(monkeypatch):
    monkeypatch.setattr(machine, "has_amx", lambda: False)
    made = config("cur_abs", "trainer.precision=bf16")
    assert machine.settled(made, "cuda") is made


def test_a_run_without_a_number_of_threads_has_that_of_the_process(monkeypatch):
    before, told = torch.get_num_threads(), []
    monkeypatch.setattr(torch, "get_num_threads", lambda: told[-1] if told else before)
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    for threads in (None, before + 2, None, None):
        machine.prepare("cpu", threads)
    assert told == [before + 2, before]


def test_this_processor_says_whether_it_has_amx():
    assert not machine.has_amx() or "amx_tile" in Path("/proc/cpuinfo").read_text()


@pytest.mark.parametrize(("words", "said"), [((), 1), (("trainer.force_bf16=true",), 0)])
def test_the_choice_is_said_and_recorded(monkeypatch, tmp_path, data_root, capfd, words, said):
    monkeypatch.setattr(machine, "has_amx", lambda: False)
    made = config("mean", "trainer.precision=bf16", "trainer.device=cpu", "seeds=[0]", f"runs={tmp_path}", *words)
    train.__wrapped__(made)
    line = "this processor has no AMX, hence trainer.precision=fp32; trainer.force_bf16=true for bf16"
    assert capfd.readouterr().err.count(line) == said
    (path,) = tmp_path.rglob("config.yaml")
    assert f"trainer.precision: {'fp32' if said else 'bf16'}\n" in path.read_text()
    assert "force_bf16" not in path.read_text()
