"""The inverse in the kernels: its two chains against float64, and the registers that launches beside it may spill."""

import os
import subprocess
import sys

import pytest
import torch
from conftest import KERNELS

if not KERNELS:
    pytest.skip("triton is not installed", allow_module_level=True)

import triton
import triton.language as tl

from lra.ops.pinv import cubic
from lra.ops.triton import core_classic, core_symmetric, resources, tiles


@triton.jit
def chain(u, grad, at, z, du, STEPS: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr, SYMMETRIC: tl.constexpr):
    """Z of U and the gradient of U from that of Z, all (BM,BM)."""
    j = tl.arange(0, BM)
    square = j[:, None] * BM + j[None, :]
    if SYMMETRIC:
        tl.store(z + square, core_symmetric.cubic(tl.load(u + square), at + square, STEPS, BM, PRECISION))
        _, found = core_symmetric.backward(tl.load(grad + square), at + square, STEPS, BM, PRECISION)
    else:
        tl.store(z + square, core_classic.cubic(tl.load(u + square), at + square, STEPS, BM, PRECISION))
        _, found = core_classic.backward(tl.load(grad + square), at + square, STEPS, BM, PRECISION)
    tl.store(du + square, found)


def inner(kind: str, size: int = 64) -> torch.Tensor:
    q, k = torch.randn(2, size, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    if kind == "equal":  # rank 3
        q, k = q[torch.arange(size) % 3], k[torch.arange(size) % 3]
    scale = {"large": 24, "flat": 0.1}.get(kind, 1)
    return (scale * q @ k.mT / 32**0.5).softmax(-1)


def run(u, grad, steps, precision, symmetric):
    size = len(u)
    at = u.new_full((tiles.scratch(steps, symmetric), size, size), float("nan"))
    z, du = u.new_empty(2, size, size)
    chain[(1,)](u, grad, at, z, du, STEPS=steps, BM=size, PRECISION=precision, SYMMETRIC=symmetric)
    return z, du


@pytest.mark.skipif(torch.cuda.is_available(), reason="products in float64 are the interpreter's")
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_both_chains_are_the_iteration_and_its_gradient_in_float64(steps, symmetric):
    u, grad = inner("normal", 16), torch.randn(16, 16, dtype=torch.float64)
    leaf = u.clone().requires_grad_()
    expected = cubic(leaf, steps=steps)
    z, du = run(u, grad, steps, "ieee", symmetric)
    torch.testing.assert_close(z, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(du, torch.autograd.grad(expected, leaf, grad)[0], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", ["normal", "equal", "large", "flat"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_symmetric_chain_errs_less_than_the_inputs_are_rounded(dtype, kind, record_property):
    u = inner(kind).float()
    for steps in (1, 4, 6):
        assert tiles.symmetric(dtype, steps)
        truth = cubic(u.double(), steps=steps)
        errors = []
        for symmetric in (True, False):
            z, _ = run(u, torch.zeros_like(u), steps, tiles.inner_precision(dtype), symmetric)
            errors.append(((z.double().to(truth.device) - truth).norm() / truth.norm()).item())
        assert errors[0] <= torch.finfo(dtype).eps / 2
        record_property("measured", f"{dtype} {kind} {steps} steps: {errors[0]:.1e} {errors[1]:.1e}")


INVERSE = ("inverse", "inverse_backward")
# Launches that have programs for the inverse if ``tiles.beside``.
BESIDE = ("rv", "r_backward", "r_backward-dv")
TRAP = 16  # registers that a kernel which the compiler found to be unreachable stays below
# Matrices of float32 that the library products of a step read and write (``core_library``): 3 for a product, 4 for one
# that is added to something. The backward pass computes the forward one again.
MOVED = {"forward": 15, "backward": 52}
SHARED = {"80": 163 * 1024, "90": 227 * 1024, "100": 227 * 1024}  # bytes that a block can have


def usage(*words):
    """Compile every launch ahead of time, in a process of its own, because this one interprets; no GPU is needed."""
    clean = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "lra.ops.triton.resources", *words]
    got = subprocess.run(command, capture_output=True, text=True, env=clean)
    assert got.returncode == 0, got.stderr
    print(got.stdout)
    head, *lines = got.stdout.splitlines()
    table = [dict(zip(head.split(), line.split(), strict=True)) for line in lines]
    return [{key: int(word) if word.isdigit() else word for key, word in row.items()} for row in table]


def most_spilled(row) -> float:
    """Bytes per thread that a launch may spill: none without programs for the inverse.

    It may store and load no more bytes per step than the library products that ``tiles.on_chip`` replaces.
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
        fits = row["shared"] <= SHARED[str(row["arch"])] and row["registers"] > TRAP
        assert fits and row["spilled"] <= most_spilled(row), row


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *(
            (["d=64", word], f"{word}: no such choice; there are arch=80,90,100 ")
            for word in ("m=3", "n=64", "arch=70")
        ),
        ([], "TRITON_INTERPRET=1 interprets kernels"),
    ],
)
def test_a_wrong_argument_of_the_table_is_refused(words, message, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["resources", *words])
    with pytest.raises(SystemExit, match=f"^lra: {message}"):
        resources.main()
