"""The two chains of the inverse in the kernels against float64: the algebra, gradients and rounding."""

import pytest
import torch
from conftest import KERNELS

if not KERNELS:
    pytest.skip("triton is not installed", allow_module_level=True)

import triton
import triton.language as tl

from lra.ops.pinv import cubic
from lra.ops.triton import core_classic, core_symmetric, tiles


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


def error(u, steps, precision, symmetric, truth):
    made = run(u.float(), torch.zeros_like(u, dtype=torch.float32), steps, precision, symmetric)[0]
    return (made.double().to(truth.device) - truth).norm()


@pytest.mark.parametrize("kind", ["normal", "equal", "large", "flat"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_symmetric_chain_errs_less_than_the_inputs_are_rounded(dtype, kind, record_property):
    precision = tiles.inner_precision(dtype)
    u = inner(kind).float().double()
    for steps in (1, 4, 6):
        assert tiles.symmetric(dtype, steps)
        truth = cubic(u, steps=steps)
        mine, classic = (error(u, steps, precision, symmetric, truth) for symmetric in (True, False))
        assert mine <= torch.finfo(dtype).eps / 2 * truth.norm()
        found = " ".join(f"{error / truth.norm():.1e}" for error in (mine, classic))
        record_property("measured", f"{dtype} {kind} {steps} steps: {found}")
