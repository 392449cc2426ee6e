"""Resident memory of a process whose tensors change their sizes, with and without lra.train.heap."""

import subprocess
import sys

import pytest

# Small blocks that stay, between large ones that go: what fragments a heap.
PROGRAM = """
import random, sys
import torch
from lra.train import heap
from lra.train.heap import Trim, keep_pages
keep_pages()
random.seed(0)
kept = []
for step in range(24):
    kept.append([(torch.empty(random.randrange(2**16, 2**20)), torch.ones(64))[1] for _ in range(20)])
    parts = [torch.ones(random.randrange(2**16, 2**20)) for _ in range(20)]
    del parts
if sys.argv[1] == "evaluation":
    Trim().on_validation_end(None, None)
if sys.argv[1] == "growth":
    heap.GROWTH, trim = 1, Trim()
    trim.needed = 0
    trim.on_train_batch_end(None, None, None, None, 0)
    assert trim.needed is None
    trim.on_train_batch_end(None, None, None, None, 1)
    assert trim.needed == heap.resident()
print(heap.resident() // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt and malloc_trim are glibc's")
def test_free_pages_are_given_back():
    resident = {}
    for mode in ("keep", "evaluation", "growth"):
        done = subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True)
        resident[mode] = int(done.stdout)
    assert max(resident["evaluation"], resident["growth"]) < resident["keep"] - 10_000, resident  # kB
