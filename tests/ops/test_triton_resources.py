"""Every launch of every size compiled ahead of time: registers, spills, shared memory. No GPU is needed."""

import os
import subprocess
import sys

import pytest
from conftest import KERNELS

if not KERNELS:
    pytest.skip("triton is not installed", allow_module_level=True)

from lra.ops.triton import resources, tiles

INVERSE = ("inverse", "inverse_backward")
BESIDE = ("rv", "r_backward", "r_backward-dv")  # launches that have programs for the inverse if ``tiles.beside``
TRAP = 16  # registers that a kernel which the compiler found to be unreachable stays below
# Matrices of float32 that the library products of a step read and write (``core_library``): 3 for a product, 4 for one
# that is added to something. The backward pass computes the forward one again.
MOVED = {"forward": 15, "backward": 52}
SHARED = {"80": 163 * 1024, "90": 227 * 1024, "100": 227 * 1024}  # bytes that a block can have


def usage(*words):
    """The table of lra.ops.triton.resources, compiled in a process of its own, because this one interprets."""
    clean = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "lra.ops.triton.resources", *words]
    got = subprocess.run(command, capture_output=True, text=True, env=clean)
    assert got.returncode == 0, got.stderr
    print(got.stdout)
    head, *lines = got.stdout.splitlines()
    table = [dict(zip(head.split(), line.split(), strict=True)) for line in lines]
    return [{key: int(word) if word.isdigit() else word for key, word in row.items()} for row in table]


def fits(row):
    return row["shared"] <= SHARED[str(row["arch"])] and row["registers"] > TRAP


def most_spilled(row) -> float:
    """The bytes for each thread that a launch may spill: none without programs for the inverse.

    64 kept rows of it take more registers than there are. What spills is stored and loaded once a step, from caches.
    Were that more bytes than library products, one launch each, read and write in device memory, they would be the
    better choice (``tiles.on_chip``).
    """
    beside = row["kernel"] in BESIDE and tiles.beside(row["m"], row["d"], resources.DTYPES[row["dtype"]], row["arch"])
    if not (tiles.on_chip(row["m"], row["arch"]) and (beside or row["kernel"] in INVERSE)):
        return 0
    matrices = MOVED["forward" if row["kernel"] in ("rv", "inverse") else "backward"]
    return matrices * row["m"] ** 2 * 4 / (2 * 32 * row["warps"])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", resources.CHOICES["dtype"])
@pytest.mark.parametrize("arch", resources.CHOICES["arch"])
def test_kernels_of_every_size_fit_and_spill_only_beside_the_inverse(arch, dtype):
    table = usage(f"arch={arch}", f"dtype={dtype}")
    sizes = {(m, d) for m in (16, 32, 64, 128) for d in (16, 32, 64, 128)}
    for kernel in ("rv", "out", "c_backward", "r_backward", "scatter", "score"):
        assert {(row["m"], row["d"]) for row in table if row["kernel"].partition("-")[0] == kernel} == sizes
    for row in table:
        assert fits(row) and row["spilled"] <= most_spilled(row), row


def test_a_wrong_word_of_the_table_gets_one_line(monkeypatch):
    for word in ("m=3", "n=64", "arch=70"):
        monkeypatch.setattr(sys, "argv", ["resources", "d=64", word])
        with pytest.raises(SystemExit, match=f"^lra: {word}: no such choice; there are arch=80,90,100 "):
            resources.main()
    monkeypatch.setattr(sys, "argv", ["resources"])
    with pytest.raises(SystemExit, match=r"^lra: TRITON_INTERPRET=1 interprets kernels"):
        resources.main()
