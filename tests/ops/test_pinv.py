"""Inverses, and their products with a matrix, against their iterations, numpy and finite differences."""

from functools import partial

import numpy as np
import pytest
import torch

from lra.ops import pinv as module
from lra.ops.cur import cur_attention
from lra.ops.newton import newton
from lra.ops.pinv import MAX_FACTORED_STEPS, cubic, exact, pinv_matmul, tikhonov
from lra.ops.precision import power_of_two_scale
from lra.reference import nystrom
from lra.reference import soft as soft_reference

NARROW = (torch.float16, torch.float32)


def stochastic(n=5, shape=(3, 2), seed=0, sharpness=3.0):
    g = torch.Generator().manual_seed(seed)
    return (sharpness * torch.randn(*shape, n, n, dtype=torch.float64, generator=g)).softmax(-1)


@pytest.mark.parametrize("init", ["per_matrix", "batch", "two_norms"])
@pytest.mark.parametrize("steps", [0, 1, 4, 6])
def test_cubic_is_the_recurrence_with_its_gradient(init, steps):
    """The hand-written backward against autograd through the reference, whose products are summed in another order."""
    m = stochastic(8) * (3.0 if init == "two_norms" else 1.0)
    m[0, 0] = 0
    upstream = torch.randn(m.shape, dtype=m.dtype, generator=torch.Generator().manual_seed(1))

    def recurrence(x):
        tiny = torch.finfo(m.dtype).tiny
        start = x.sum(-2).max(-1).values.clamp(min=tiny)
        start = start.max().expand(start.shape) if init == "batch" else start
        start = start * x.sum(-1).max(-1).values.clamp(min=tiny) if init == "two_norms" else start
        pairs = zip(x.flatten(0, 1), start.flatten(), strict=True)
        return torch.stack([nystrom.iterative_pinv(matrix, steps, divisor) for matrix, divisor in pairs]).view_as(x)

    x = m.clone().requires_grad_()
    values = cubic(x, steps=steps, init=init), recurrence(x)
    gradients = [torch.autograd.grad(z, x, upstream)[0] for z in values]
    if init == "batch":  # the others divide the zero matrix by the smallest normal number
        assert gradients[0][0, 0].isfinite().all()
    for pair in (values, gradients):
        result, expected = (x.flatten(0, 1)[init != "batch" :] for x in pair)
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-13 * expected.abs().max().item())


def test_gradient_of_the_gradient():
    m = stochastic(3, (2,)).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: cubic(x, steps=3), m)


@pytest.mark.slow
def test_gradient_compiled_and_without():
    m = stochastic(4, (2,)).requires_grad_()
    value = lambda x: cubic(x, steps=2).square().sum()
    compiled = torch.compile(value, fullgraph=True, backend="aot_eager")
    gradients = (torch.autograd.grad(f(m), m)[0] for f in (value, compiled))
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        assert not cubic(m, steps=2).requires_grad


@pytest.mark.parametrize("row_sum", [0.1, 3.0, 32.0])
def test_rows_that_do_not_sum_to_one_need_both_norms(row_sum):
    """Without the row norm the largest eigenvalue of m Z_0 is the row sum, and steps diverge from about 4.4 on."""
    m = row_sum * (0.8 * torch.eye(32) + 0.2 * stochastic(32).float())
    truth = torch.linalg.inv(m)
    error = {init: (cubic(m, steps=8, init=init) - truth).norm() / truth.norm() for init in ("per_matrix", "two_norms")}
    assert error["two_norms"] < 1e-3
    assert (error["per_matrix"] < 1e-3) == torch.isfinite(error["per_matrix"]) == (row_sum < 4.4)


def test_gradient_goes_through_the_first_of_equal_column_sums():
    m = torch.full((1, 3, 3), 1 / 3, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(cubic(m, steps=0).sum(), m)
    # sum(mᵀ / s) = 3 / s with s = 1: d/dm = 1 everywhere, and - 3 in the one column that s is the sum of
    np.testing.assert_allclose(gradient[0], [[-2, 1, 1]] * 3, atol=1e-12)


@pytest.mark.parametrize("inverse", [partial(cubic, steps=6), partial(tikhonov, ridge=0.1)])
def test_narrow_dtypes_are_computed_in_float32(inverse):
    m = stochastic(16).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        got = inverse(m)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), inverse(m.double()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("steps", [4, 6])
def test_degenerate_matrices_stay_finite(steps):
    c = 32
    rows = torch.zeros(4, c, c)
    rows[0] = 1 / c  # constant
    rows[1, :, 0] = 1  # one column takes all
    rows[2, : c // 2, : c // 2] = torch.eye(c // 2)  # padded half
    rows[3] = torch.eye(c)[torch.arange(c) // 2]  # equal rows
    rows.requires_grad_()
    z = cubic(rows, steps=steps)
    z.square().sum().backward()
    assert z.isfinite().all() and rows.grad.isfinite().all()
    assert (z[2, c // 2 :] == 0).all() and (z[2, :, c // 2 :] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scale_is_a_power_of_two_and_leaves_zeros(dtype):
    largest = torch.tensor([1e-30, 0.3, 1.0, 7.0, 1e30, 3e38, 0.0], dtype=dtype)
    x = torch.stack([largest, -largest / 3], -1)[:, :, None]  # (7,2,1)
    factor = power_of_two_scale(x).flatten()
    assert torch.equal(factor, torch.exp2(factor.log2().round())) and factor[-1] == 1
    largest = largest * factor
    assert ((largest >= 0.5) & (largest <= 1))[:5].all() and 0.5 <= largest[5] < 8
    subnormal = torch.full((1, 2), torch.finfo(dtype).smallest_normal / 8, dtype=dtype)
    assert power_of_two_scale(subnormal).isfinite().all()


@pytest.mark.parametrize("ridge", [0.3, 0.03])
@pytest.mark.parametrize("rows", [3, 5, 8])
def test_tikhonov_damps_singular_values(ridge, rows):
    m = stochastic()
    m = torch.cat([m, m**2], -2)[..., :rows, :]
    got = tikhonov(m, ridge=ridge)
    for i, j in np.ndindex(3, 2):
        u, s, vt = np.linalg.svd(m[i, j].numpy(), full_matrices=False)
        np.testing.assert_allclose(got[i, j], vt.T * (s / (s**2 + (ridge * s[0]) ** 2)) @ u.T, rtol=1e-9, atol=1e-12)
        assert np.linalg.norm(got[i, j], 2) <= 1 / (2 * ridge * s[0]) + 1e-12


def test_zeros_have_zeros_as_their_inverse():
    """Padding leaves rows and columns of zeros, which stay."""
    m = stochastic(6)
    pad = lambda x: torch.nn.functional.pad(x, (0, 2, 0, 2))
    torch.testing.assert_close(tikhonov(pad(m), ridge=0.1), pad(tikhonov(m, ridge=0.1)))
    zeros = torch.zeros(2, 3, 3)
    assert not tikhonov(zeros, ridge=0.1).any() and not cubic(zeros, steps=4, init="two_norms").any()


def test_exact_is_numpys_with_a_cut_off_and_for_a_singular_matrix():
    m = stochastic()
    flat = m @ torch.diag(torch.tensor([1.0, 1, 1, 0, 0], dtype=torch.float64)) @ m
    cut_off = exact(m, rtol=0.3)
    np.testing.assert_allclose(cut_off, np.linalg.pinv(m.numpy(), rcond=0.3), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(exact(flat), np.linalg.pinv(flat.numpy(), rcond=1e-13), rtol=1e-6, atol=1e-6)
    assert torch.linalg.matrix_rank(cut_off).min() < 5


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_a_matrix_that_is_not_finite_has_no_inverse_and_harms_no_other(bad):
    m = stochastic(4, (3,))
    spoilt = m.clone()
    spoilt[1, 2, 0] = bad
    inverses = exact(spoilt)
    assert inverses[1].isnan().all()
    assert torch.equal(inverses[[0, 2]], exact(m)[[0, 2]])


def test_the_true_inverse_is_that_of_float32_in_float16():
    """U⁺ R V of sharp rows leaves the range of float16 in most of these draws, and the results stay in it."""
    beyond = 0
    for seed in range(30):
        g = torch.Generator().manual_seed(seed)
        q, k, v = (3 * torch.randn(1, 2, 32, 8, generator=g).half() for _ in range(3))
        out, wide = (cur_attention(*(x.to(dtype) for x in (q, k, v)), count=8, steps=None) for dtype in NARROW)
        assert out.dtype == torch.float16
        torch.testing.assert_close(out, wide.half(), rtol=2**-10, atol=0, equal_nan=True)
        at = torch.arange(8) * 4  # some rows
        u = (q[:, :, at].float() @ k[:, :, at].float().mT / 8**0.5).softmax(-1)
        beyond += bool(exact(u).abs().max() > torch.finfo(torch.float16).max)
    assert beyond > 5


def drawn(c=16):
    """Matrices as CUR has them, one with padded rows, and what they are multiplied with."""
    g = torch.Generator().manual_seed(0)
    m = (3 * torch.randn(2, 2, c, c, dtype=torch.float64, generator=g)).softmax(-1)
    m[1, 1, c // 2 :] = 0
    return m.requires_grad_(), torch.randn(2, 2, c, 5, dtype=torch.float64, generator=g).requires_grad_()


def with_gradients(value, *given):
    return [value, *torch.autograd.grad(value.square().sum(), given)]


@pytest.mark.parametrize("steps", range(1, MAX_FACTORED_STEPS + 1))
def test_factors_are_the_inverse_times_x(monkeypatch, steps):
    """Also with the gradient of the gradient. Errors grow by 13/4 a step."""
    m, x = drawn()
    expected = with_gradients(cubic(m, steps=steps) @ x, m, x)
    monkeypatch.setattr(module, "HALF_TYPES", (torch.float64,))
    pinv = partial(cubic, steps=steps)
    for right, found in zip(expected, with_gradients(pinv_matmul(pinv, m, x), m, x), strict=True):
        torch.testing.assert_close(found, right, rtol=0, atol=1e-14 * 3.25**steps * right.abs().max().item())
    m, x = (each[0, :1].detach().requires_grad_() for each in drawn(3))
    assert torch.autograd.gradgradcheck(partial(pinv_matmul, pinv), (m, x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_lose_nothing_by_it(dtype):
    m, x = drawn()
    narrow = x.detach().to(dtype).requires_grad_()
    x = narrow.detach().double().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        value = pinv_matmul(partial(cubic, steps=4), m.float(), narrow)
    found = with_gradients(value, m, narrow)
    assert value.dtype == torch.float32
    for one, right in zip(found, with_gradients(cubic(m, steps=4) @ x, m, x), strict=True):
        precision = torch.finfo(one.dtype).eps if one is found[2] else 1e-5
        torch.testing.assert_close(one.double(), right, rtol=0, atol=precision * right.abs().max().item())


PINVS = {
    "more": partial(cubic, steps=MAX_FACTORED_STEPS + 1),
    "start": partial(cubic, steps=4, init="two_norms"),
    "ridge": partial(tikhonov, ridge=0.1),
}


@pytest.mark.parametrize("name", [*PINVS])
def test_other_inverses_are_computed(name):
    m, x = (each.detach().float() for each in drawn())
    assert torch.equal(pinv_matmul(PINVS[name], m, x.bfloat16()), PINVS[name](m) @ x.bfloat16().float())
    assert torch.equal(pinv_matmul(PINVS[name], m, x), PINVS[name](m) @ x)


def spd(n, *batch, seed=0, spread=0.4):
    """A symmetric positive matrix with eigenvalues 1 and up."""
    x = torch.randn(*batch, n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.eye(n, dtype=torch.float64) + spread * x @ x.mT / n


@pytest.mark.parametrize("init", ["soft", "paper", "softpp"])
@pytest.mark.parametrize("grad", ["implicit", "unroll"])
def test_newton_converges_to_the_inverse_and_its_gradient(init, grad):
    x = spd(4, 2).requires_grad_()
    invert = lambda m: newton((m + m.mT) / 2, steps=25, init=init, grad=grad)
    torch.testing.assert_close(invert(x), torch.linalg.inv(x), rtol=1e-10, atol=1e-10)
    weight = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    got, want = (torch.autograd.grad((f(x) * weight).sum(), x)[0] for f in (invert, torch.linalg.inv))
    torch.testing.assert_close(got, (want + want.mT) / 2, rtol=1e-8, atol=1e-8)
    assert torch.autograd.gradcheck(invert, x)


@pytest.mark.parametrize("init", ["soft", "paper", "softpp"])
@pytest.mark.parametrize("kind", ["dominant", "gaussian", "equal", "one"])
def test_newton_starts_where_the_published_rule_does(init, kind):
    """Before it has converged the start shows; ``equal`` has the eigenvalue where alpha = 2 / ||A||² stands still."""
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    ones = torch.ones(7, 7, dtype=torch.float64)
    gaussian = soft_reference.gaussian_kernel(x, x)
    m = {"dominant": torch.eye(7) + 0.01 * ones, "gaussian": gaussian, "equal": ones, "one": ones[:1, :1]}[kind]
    for steps in (0, 3, 20):
        result = newton(m.expand(2, -1, -1), steps=steps, init=init, ridge=0.01)
        expected = soft_reference.newton_inverse(m, steps, init, 0.01)
        torch.testing.assert_close(result, expected.expand(2, -1, -1), rtol=1e-9, atol=1e-12)


def test_implicit_gradient_is_the_explicit_backward_also_before_convergence():
    x = spd(5).requires_grad_()
    upstream = torch.randn(5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = newton(x, steps=2)
    torch.testing.assert_close(torch.autograd.grad(y, x, upstream)[0], -(y.T @ upstream @ y.T).detach())


@pytest.mark.parametrize("init", ["soft", "paper", "softpp"])
def test_unrolled_gradient_before_convergence(init):
    x = spd(5).requires_grad_()
    assert torch.autograd.gradcheck(lambda m: newton(m, steps=2, grad="unroll", init=init), x)
