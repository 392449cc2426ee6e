"""The inverse in the kernels: its two implementations against float64, and the registers that launches spill."""

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
def chain(
    # Inputs, matrices of the steps, outputs.
    u, grad, a, r, at, z, du,
    STEPS: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr, SYMMETRIC: tl.constexpr,
):  # fmt: skip
    """Compute Z of U, and the gradient of U from the gradient of Z, grad + a rᵀ, all (BM,BM)."""
    j = tl.arange(0, BM)
    square = j[:, None] * BM + j[None, :]
    if SYMMETRIC:
        tl.store(z + square, core_symmetric.cubic(tl.load(u + square), at + square, STEPS, BM, PRECISION))
        dz = tl.load(grad + square)
        _, grad_u = core_symmetric.backward(dz, tl.load(a + j), tl.load(r + j), at + square, STEPS, BM, PRECISION)
    else:
        tl.store(z + square, core_classic.cubic(tl.load(u + square), at + square, STEPS, BM, PRECISION))
        dz = tl.load(grad + square) + tl.load(a + j)[:, None] * tl.load(r + j)[None, :]
        _, grad_u = core_classic.backward(dz, at + square, STEPS, BM, PRECISION)
    tl.store(du + square, grad_u)


def inner_matrix(kind: str, size: int = 64) -> torch.Tensor:
    q, k = torch.randn(2, size, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    # Three distinct rows and columns, so rank 3.
    if kind == "equal":
        q, k = q[torch.arange(size) % 3], k[torch.arange(size) % 3]
    return ({"large": 24, "flat": 0.1}.get(kind, 1) * q @ k.mT / 32**0.5).softmax(-1)


def run(u, grad, a, r, steps, precision, symmetric):
    size = len(u)
    at = u.new_full((tiles.num_scratch_matrices(steps, symmetric), size, size), float("nan"))
    z, du = u.new_empty(2, size, size)
    chain[(1,)](u, grad, a, r, at, z, du, STEPS=steps, BM=size, PRECISION=precision, SYMMETRIC=symmetric)
    return z, du


@pytest.mark.skipif(torch.cuda.is_available(), reason="products in float64 are the interpreter's")
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_inverse_and_gradient_match_cubic_in_float64(steps, symmetric):
    u, grad = inner_matrix("normal", 16), torch.randn(16, 16, dtype=torch.float64)
    a, r = torch.randn(2, 16, dtype=torch.float64)
    leaf = u.clone().requires_grad_()
    expected = cubic(leaf, steps=steps)
    z, du = run(u, grad, a, r, steps, "ieee", symmetric)
    torch.testing.assert_close(z, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(du, torch.autograd.grad(expected, leaf, grad + a.outer(r))[0], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", ["normal", "equal", "large", "flat"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_symmetric_inverse_error_is_below_input_rounding(dtype, kind, record_property):
    u = inner_matrix(kind).float()
    for steps in (1, 4, 6):
        assert tiles.symmetric(dtype, steps)
        truth = cubic(u.double(), steps=steps)
        errors = []
        for symmetric in (True, False):
            z, _ = run(u, torch.zeros_like(u), u[0], u[0], steps, tiles.inner_precision(dtype), symmetric)
            errors.append(((z.double().to(truth.device) - truth).norm() / truth.norm()).item())
        assert errors[0] <= torch.finfo(dtype).eps / 2
        record_property("measured", f"{dtype} {kind} {steps} steps: {errors[0]:.1e} {errors[1]:.1e}")


INVERSE = ("inverse", "inverse_backward")
# Launches into which the inverse is fused if ``tiles.fuses_inverse``.
FUSED = ("rv", "r_backward", "r_backward-dv")
# A kernel that the compiler reduced to a single trap instruction uses fewer registers.
TRAP = 16
# Float32 matrices that the library products of a step read and write (``core_library``): 3 for a product, 4 with an
# addition. The backward pass recomputes the forward pass.
MATRICES_MOVED = {"forward": 15, "backward": 52}
# Bytes of shared memory that a block can use.
SHARED_MEMORY = {"80": 163 * 1024, "90": 227 * 1024, "100": 227 * 1024}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", resources.CHOICES["dtype"])
@pytest.mark.parametrize("arch", resources.CHOICES["arch"])
def test_kernels_fit_and_spill_only_with_inverse(arch, dtype):
    # Compile every launch ahead of time without a GPU. In a subprocess, because this process interprets kernels.
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "lra.ops.triton.resources", f"arch={arch}", f"dtype={dtype}"]
    completed = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert completed.returncode == 0, completed.stderr
    print(completed.stdout)
    header, *lines = completed.stdout.splitlines()
    words = [dict(zip(header.split(), line.split(), strict=True)) for line in lines]
    table = [{key: int(word) if word.isdigit() else word for key, word in row.items()} for row in words]
    sizes = {(m, d) for m in (16, 32, 64, 128) for d in (16, 32, 64, 128)}
    for kernel in ("rv", "out", "c_backward", "r_backward", "scatter", "score"):
        assert {(row["m"], row["d"]) for row in table if row["kernel"].partition("-")[0] == kernel} == sizes
    for row in table:
        fits = row["shared"] <= SHARED_MEMORY[str(row["arch"])] and row["registers"] > TRAP
        # Only launches with programs for the inverse may spill, and they may not move more bytes per step than the
        # library products that the inverse on chip replaces.
        launch = (row["m"], row["d"], resources.DTYPES[row["dtype"]], row["arch"])
        has_inverse = row["kernel"] in INVERSE or (row["kernel"] in FUSED and tiles.fuses_inverse(*launch))
        matrices = MATRICES_MOVED["forward" if row["kernel"] in ("rv", "inverse") else "backward"]
        limit = matrices * row["m"] ** 2 * 4 / (2 * 32 * row["warps"])
        assert fits and row["spilled"] <= limit * (has_inverse and tiles.on_chip(row["m"], row["arch"])), row
