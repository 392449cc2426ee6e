"""What a run takes from its machine: threads, and products of 16-bit numbers."""

from pathlib import Path

import pytest
import torch
from conftest import config

from lra.train import machine
from lra.train.__main__ import train


def test_a_run_without_a_number_of_threads_has_that_of_the_process(monkeypatch):
    before, told = torch.get_num_threads(), []
    monkeypatch.setattr(torch, "get_num_threads", lambda: told[-1] if told else before)
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    for threads in (None, before + 2, None, None):
        machine.prepare("cpu", threads)
    assert told == [before + 2, before]


def test_this_processor_says_whether_it_multiplies_16_bit_numbers():
    flags = Path("/proc/cpuinfo").read_text()
    assert machine.multiplies_bf16() == ("amx_tile" in flags or "avx512_bf16" in flags)


@pytest.mark.parametrize(("able", "said"), [(False, 1), (True, 0)])
def test_bf16_is_used_and_recorded_and_its_slowness_is_said(monkeypatch, tmp_path, data_root, capfd, able, said):
    monkeypatch.setattr(machine, "multiplies_bf16", lambda: able)
    train.__wrapped__(config("mean", "trainer.precision=bf16", "trainer.device=cpu", "seeds=[0]", f"runs={tmp_path}"))
    assert capfd.readouterr().err.count("no products of 16-bit numbers; trainer.precision=fp32 is faster") == said
    (path,) = tmp_path.rglob("config.yaml")
    assert "trainer.precision: bf16\n" in path.read_text()
