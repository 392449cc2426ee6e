"""Resident memory of a process whose tensors change their sizes, with and without lra.train.heap."""

import subprocess
import sys

import pytest

# Small blocks that stay, between large ones that go, fragment a heap. Printed: MB before and after each trimming.
PROGRAM = """
import random
import torch
from lra.train import heap
heap.keep_pages()
heap.GROWTH = 1
trim, kept = heap.Trim(), []
def fragment():
    for step in range(24):
        kept.append([(torch.empty(random.randrange(2**16, 2**20)), torch.ones(64))[1] for _ in range(20)])
        parts = [torch.ones(random.randrange(2**16, 2**20)) for _ in range(20)]
        del parts
    return heap.resident() >> 20
def step(phase):
    getattr(trim, f"on_{phase}_batch_end")(None, None, None, None, 0)
    return heap.resident() >> 20
random.seed(0)
print(fragment(), trim.on_validation_end(None, None) or heap.resident() >> 20)
for phase in ("train", "validation", "test"):
    step(phase)
    print(fragment(), step(phase))
    assert trim.needed is None
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt and malloc_trim are glibc's")
def test_free_pages_are_given_back_after_an_evaluation_and_when_memory_has_grown():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    for before, after in (map(int, line.split()) for line in done.stdout.splitlines()):
        assert after < before - 10, done.stdout
