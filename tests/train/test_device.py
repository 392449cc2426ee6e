"""Threads, products of 16-bit numbers and memory: the resources that a run takes from its machine, or gives back."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import config

from lra.train import device
from lra.train.__main__ import train

# Small blocks that stay, between large ones that go, fragment a heap. Printed: MB before and after each trimming.
PROGRAM = """
import random
import torch
from lra.train import device
device.keep_pages()
device.GROWTH = 1
trim, kept = device.TrimHeap(), []
def fragment():
    for step in range(24):
        kept.append([(torch.empty(random.randrange(2**16, 2**20)), torch.ones(64))[1] for _ in range(20)])
        parts = [torch.ones(random.randrange(2**16, 2**20)) for _ in range(20)]
        del parts
    return device.resident_bytes() >> 20
def step(phase):
    getattr(trim, f"on_{phase}_batch_end")(None, None, None, None, 0)
    return device.resident_bytes() >> 20
random.seed(0)
print(fragment(), trim.on_validation_end(None, None) or device.resident_bytes() >> 20)
for phase in ("train", "validation", "test"):
    step(phase)
    print(fragment(), step(phase))
    assert trim.baseline is None
"""


def test_a_run_without_a_number_of_threads_has_that_of_the_process(monkeypatch):
    before, told = torch.get_num_threads(), []
    monkeypatch.setattr(torch, "get_num_threads", lambda: told[-1] if told else before)
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    for threads in (None, before + 2, None, None):
        device.prepare_process("cpu", threads)
    assert told == [before + 2, before]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_this_processor_says_whether_it_multiplies_16_bit_numbers():
    flags = Path("/proc/cpuinfo").read_text()
    assert device.supports_bf16() == ("amx_tile" in flags or "avx512_bf16" in flags)


@pytest.mark.parametrize(("able", "said"), [(False, 1), (True, 0)])
def test_bf16_is_used_and_recorded_and_its_slowness_is_said(monkeypatch, tmp_path, data_root, capfd, able, said):
    monkeypatch.setattr(device, "supports_bf16", lambda: able)
    train.__wrapped__(config("mean", "trainer.precision=bf16", "trainer.device=cpu", "seeds=[0]", f"runs={tmp_path}"))
    assert capfd.readouterr().err.count("no bfloat16 instructions; trainer.precision=fp32 is faster") == said
    (path,) = tmp_path.rglob("config.yaml")
    assert "trainer.precision: bf16\n" in path.read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt and malloc_trim are glibc's")
def test_free_pages_are_given_back_after_an_evaluation_and_when_memory_has_grown():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    for before, after in (map(int, line.split()) for line in done.stdout.splitlines()):
        assert after < before - 10, done.stdout
