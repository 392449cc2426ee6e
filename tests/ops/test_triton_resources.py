"""Every launch of every size compiled ahead of time: registers, spills, shared memory. No GPU is needed."""

import os
import subprocess
import sys

import pytest
import torch
from conftest import KERNELS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if not KERNELS:
    pytest.skip("triton is not installed", allow_module_level=True)

from lra.ops.triton import core_library, resources, tiles

INVERSE = ("inverse", "inverse_backward")
BESIDE = ("rv", "r_backward", "r_backward-dv")  # launches that have programs for the inverse if ``tiles.beside``
TRAP = 16  # registers that a kernel which the compiler found to be unreachable stays below
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


class Moved(TorchDispatchMode):
    """Adds up the bytes that operations read and write."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view and func is not torch.ops.aten._unsafe_view.default:
            self.bytes += sum(x.nbytes for x in tree_leaves((args, kwargs, out)) if isinstance(x, torch.Tensor))
        return out


def library_bytes(m: int) -> dict[str, int]:
    """Bytes that each further step of ``core_library`` reads and writes for one head, by pass."""
    a, b, rv, dw = torch.randn(4, 1, m, 16)

    def moved(stand_in, *tensors):
        found = []
        for steps in (1, 2):
            with Moved() as counter:
                stand_in(a, b, None, None, *tensors, steps)
            found.append(counter.bytes)
        return found[1] - found[0]

    return {"forward": moved(core_library.inverse), "backward": moved(core_library.backward, rv, dw)}


def most_spilled(row) -> float:
    """The bytes for each thread that a launch may spill: none without programs for the inverse.

    64 kept rows of it take more registers than there are. What spills is stored and loaded once a step, from caches.
    Were that more bytes than library products, one launch each, read and write in device memory, they would be the
    better choice (``tiles.on_chip``).
    """
    beside = row["kernel"] in BESIDE and tiles.beside(row["m"], row["d"], resources.DTYPES[row["dtype"]], row["arch"])
    if not (tiles.on_chip(row["m"], row["arch"]) and (beside or row["kernel"] in INVERSE)):
        return 0
    moved = library_bytes(row["m"])["forward" if row["kernel"] in ("rv", "inverse") else "backward"]
    return moved / (2 * 32 * row["warps"])


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


@pytest.mark.slow
def test_library_products_of_a_step_move_so_many_matrices():
    """Of m x m float32, 3 for a product, 4 for one that is added to something: 15 forward, and 63 with those again."""
    assert library_bytes(64) == {"forward": 15 * 64 * 64 * 4, "backward": 63 * 64 * 64 * 4}


def test_a_wrong_word_of_the_table_gets_one_line(monkeypatch):
    for word in ("m=3", "n=64", "arch=70"):
        monkeypatch.setattr(sys, "argv", ["resources", "d=64", word])
        with pytest.raises(SystemExit, match=f"^lra: {word}: no such choice; there are arch=80,90,100 "):
            resources.main()
    monkeypatch.setattr(sys, "argv", ["resources"])
    with pytest.raises(SystemExit, match=r"^lra: TRITON_INTERPRET=1 interprets kernels"):
        resources.main()
