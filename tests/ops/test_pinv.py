"""Pseudo-inverses and their products with a matrix against reference iterations, NumPy and finite differences."""

from functools import partial

import numpy as np
import pytest
import torch

from lra.ops import pinv as module
from lra.ops.cur import cur_attention
from lra.ops.newton import newton
from lra.ops.pinv import MAX_FACTORED_STEPS, cubic, exact, pinv_matmul, tikhonov
from lra.reference import nystrom
from lra.reference import soft as soft_reference


def stochastic_matrices(n=5, shape=(3, 2), seed=0, sharpness=3.0):
    g = torch.Generator().manual_seed(seed)
    return (sharpness * torch.randn(*shape, n, n, dtype=torch.float64, generator=g)).softmax(-1)


@pytest.mark.parametrize("init", ["per_matrix", "batch", "two_norms"])
@pytest.mark.parametrize("steps", [0, 1, 4, 6])
def test_cubic_and_gradient_match_reference(init, steps):
    """Compares the hand-written backward with autograd through the reference, which sums in another order."""
    m = stochastic_matrices(8) * (3.0 if init == "two_norms" else 1.0)
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
    # Otherwise the zero matrix is divided by the smallest normal number, so it is not compared.
    if init == "batch":
        assert gradients[0][0, 0].isfinite().all()
    for pair in (values, gradients):
        result, expected = (x.flatten(0, 1)[init != "batch" :] for x in pair)
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-13 * expected.abs().max().item())


def test_cubic_passes_gradgradcheck():
    assert torch.autograd.gradgradcheck(lambda x: cubic(x, steps=3), stochastic_matrices(3, (2,)).requires_grad_())


@pytest.mark.slow
def test_cubic_compiled_gradient_matches_eager():
    m = stochastic_matrices(4, (2,)).requires_grad_()
    value = lambda x: cubic(x, steps=2).square().sum()
    compiled = torch.compile(value, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(*(torch.autograd.grad(f(m), m)[0] for f in (value, compiled)), rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        assert not cubic(m, steps=2).requires_grad


def test_cubic_gradient_uses_first_of_equal_column_sums():
    m = torch.full((1, 3, 3), 1 / 3, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(cubic(m, steps=0).sum(), m)
    # sum(mᵀ / s) = sum(m) / s with sum(m) = 3 and s = 1: d/dm is 1, minus 3 in the column whose sum is s.
    np.testing.assert_allclose(gradient[0], [[-2, 1, 1]] * 3, atol=1e-12)


@pytest.mark.parametrize("inverse", [partial(cubic, steps=6), partial(tikhonov, ridge=0.1)])
def test_bfloat16_inverse_is_computed_in_float32(inverse):
    m = stochastic_matrices(16).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        actual = inverse(m)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual.double(), inverse(m.double()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("steps", [4, 6])
def test_cubic_of_degenerate_matrices_is_finite(steps):
    c = 32
    # A constant matrix, one column with all the weight, half of it padding, pairs of equal rows.
    rows = torch.zeros(4, c, c)
    rows[0] = 1 / c
    rows[1, :, 0] = 1
    rows[2, : c // 2, : c // 2] = torch.eye(c // 2)
    rows[3] = torch.eye(c)[torch.arange(c) // 2]
    rows.requires_grad_()
    z = cubic(rows, steps=steps)
    z.square().sum().backward()
    assert z.isfinite().all() and rows.grad.isfinite().all()
    assert (z[2, c // 2 :] == 0).all() and (z[2, :, c // 2 :] == 0).all()


@pytest.mark.parametrize("ridge", [0.3, 0.03])
@pytest.mark.parametrize("rows", [3, 5, 8])
def test_tikhonov_damps_singular_values(ridge, rows):
    m = stochastic_matrices()
    m = torch.cat([m, m**2], -2)[..., :rows, :]
    actual = tikhonov(m, ridge=ridge)
    for i, j in np.ndindex(3, 2):
        u, s, vt = np.linalg.svd(m[i, j].numpy(), full_matrices=False)
        np.testing.assert_allclose(actual[i, j], vt.T * (s / (s**2 + (ridge * s[0]) ** 2)) @ u.T, rtol=1e-9, atol=1e-12)
        assert np.linalg.norm(actual[i, j], 2) <= 1 / (2 * ridge * s[0]) + 1e-12


def test_inverse_of_zero_rows_and_columns_is_zero():
    m = stochastic_matrices(6)
    pad = lambda x: torch.nn.functional.pad(x, (0, 2, 0, 2))
    torch.testing.assert_close(tikhonov(pad(m), ridge=0.1), pad(tikhonov(m, ridge=0.1)))
    zeros = torch.zeros(2, 3, 3)
    assert not tikhonov(zeros, ridge=0.1).any() and not cubic(zeros, steps=4, init="two_norms").any()


def test_exact_matches_numpy_pinv():
    m = stochastic_matrices()
    singular = m @ torch.diag(torch.tensor([1.0, 1, 1, 0, 0], dtype=torch.float64)) @ m
    cut_off = exact(m, rtol=0.3)
    np.testing.assert_allclose(cut_off, np.linalg.pinv(m.numpy(), rcond=0.3), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(exact(singular), np.linalg.pinv(singular.numpy(), rcond=1e-13), rtol=1e-6, atol=1e-6)
    assert torch.linalg.matrix_rank(cut_off).min() < 5


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_exact_of_non_finite_matrix_is_nan_for_that_matrix_only(bad):
    m = stochastic_matrices(4, (3,))
    corrupted = m.clone()
    corrupted[1, 2, 0] = bad
    inverses = exact(corrupted)
    assert inverses[1].isnan().all() and torch.equal(inverses[[0, 2]], exact(m)[[0, 2]])


def test_cur_attention_float16_exact_inverse_matches_float32():
    """In more than 5 of the 30 draws U⁺ exceeds the range of float16, although the results do not."""
    num_overflows = 0
    for seed in range(30):
        g = torch.Generator().manual_seed(seed)
        q, k, v = (3 * torch.randn(1, 2, 32, 8, generator=g).half() for _ in range(3))
        out = cur_attention(q, k, v, count=8, steps=None)
        out_float32 = cur_attention(q.float(), k.float(), v.float(), count=8, steps=None)
        assert out.dtype == torch.float16
        torch.testing.assert_close(out, out_float32.half(), rtol=2**-10, atol=0)
        with torch.autocast("cpu", torch.float16):
            assert torch.equal(cur_attention(q.float(), k.float(), v.float(), count=8, steps=None), out_float32)
        positions = torch.arange(8) * 4
        u = (q[:, :, positions].float() @ k[:, :, positions].float().mT / 8**0.5).softmax(-1)
        num_overflows += bool(exact(u).abs().max() > torch.finfo(torch.float16).max)
    assert num_overflows > 5


def draw_inputs(c=16):
    """Draw inner matrices of CUR, one with padded rows, and the matrices that their inverses are multiplied with."""
    g = torch.Generator().manual_seed(0)
    m = (3 * torch.randn(2, 2, c, c, dtype=torch.float64, generator=g)).softmax(-1)
    m[1, 1, c // 2 :] = 0
    return m.requires_grad_(), torch.randn(2, 2, c, 5, dtype=torch.float64, generator=g).requires_grad_()


def with_gradients(value, *leaves):
    return [value, *torch.autograd.grad(value.square().sum(), leaves)]


@pytest.mark.parametrize("steps", range(1, MAX_FACTORED_STEPS + 1))
def test_pinv_matmul_matches_inverse_times_x(monkeypatch, steps):
    """Includes the gradient and the second derivative. Rounding errors grow by 13/4 per step (``pinv_matmul``)."""
    m, x = draw_inputs()
    expected = with_gradients(cubic(m, steps=steps) @ x, m, x)
    monkeypatch.setattr(module, "HALF_TYPES", (torch.float64,))
    pinv = partial(cubic, steps=steps)
    for target, computed in zip(expected, with_gradients(pinv_matmul(pinv, m, x), m, x), strict=True):
        torch.testing.assert_close(computed, target, rtol=0, atol=1e-14 * 3.25**steps * target.abs().max().item())
    m, x = (item[0, :1].detach().requires_grad_() for item in draw_inputs(3))
    assert torch.autograd.gradgradcheck(partial(pinv_matmul, pinv), (m, x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_pinv_matmul_of_16_bits_has_float32_accuracy(dtype):
    m, x = draw_inputs()
    half_x = x.detach().to(dtype).requires_grad_()
    x = half_x.detach().double().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        value = pinv_matmul(partial(cubic, steps=4), m.float(), half_x)
    computed = with_gradients(value, m, half_x)
    assert value.dtype == torch.float32
    for tensor, target in zip(computed, with_gradients(cubic(m, steps=4) @ x, m, x), strict=True):
        precision = torch.finfo(tensor.dtype).eps if tensor is computed[2] else 1e-5
        torch.testing.assert_close(tensor.double(), target, rtol=0, atol=precision * target.abs().max().item())


def test_pinv_matmul_of_16_bits_takes_matrix_without_batch():
    m, x = (item[0, 0].detach().float() for item in draw_inputs())
    pinv = partial(cubic, steps=4)
    product = pinv_matmul(pinv, m, x.bfloat16())
    torch.testing.assert_close(product, pinv(m) @ x.bfloat16().float(), rtol=0, atol=1e-5 * product.abs().max().item())


CUBIC = [partial(cubic, steps=MAX_FACTORED_STEPS + 1), partial(cubic, steps=4, init="two_norms")]


@pytest.mark.parametrize("pinv", [*CUBIC, partial(tikhonov, ridge=0.1)], ids=["more", "start", "ridge"])
def test_pinv_matmul_forms_other_inverses(pinv):
    m, x = (item.detach().float() for item in draw_inputs())
    assert torch.equal(pinv_matmul(pinv, m, x.bfloat16()), pinv(m) @ x.bfloat16().float())
    assert torch.equal(pinv_matmul(pinv, m, x), pinv(m) @ x)


def spd(n, *batch, seed=0, spread=0.4):
    """Draw symmetric positive definite matrices with eigenvalues of at least 1."""
    x = torch.randn(*batch, n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.eye(n, dtype=torch.float64) + spread * x @ x.mT / n


@pytest.mark.parametrize("init", ["soft", "paper", "softpp"])
@pytest.mark.parametrize("kind", ["dominant", "gaussian", "equal", "one"])
def test_newton_init_matches_published_rule(init, kind):
    """Few steps have not converged and depend on the initial α. ``equal`` has α λ² = 2, the limit of convergence."""
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    ones = torch.ones(7, 7, dtype=torch.float64)
    gaussian = soft_reference.gaussian_kernel(x, x)
    m = {"dominant": torch.eye(7) + 0.01 * ones, "gaussian": gaussian, "equal": ones, "one": ones[:1, :1]}[kind]
    for steps in (0, 3, 20):
        result = newton(m.expand(2, -1, -1), steps=steps, init=init, ridge=0.01)
        expected = soft_reference.newton_inverse(m, steps, init, 0.01)
        torch.testing.assert_close(result, expected.expand(2, -1, -1), rtol=1e-9, atol=1e-12)


def test_newton_implicit_gradient_matches_published_backward():
    x = spd(5).requires_grad_()
    upstream = torch.randn(5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = newton(x, steps=2)
    torch.testing.assert_close(torch.autograd.grad(y, x, upstream)[0], -(y.T @ upstream @ y.T).detach())


@pytest.mark.parametrize("init", ["soft", "paper", "softpp"])
def test_newton_unrolled_gradient_passes_gradcheck(init):
    assert torch.autograd.gradcheck(lambda m: newton(m, steps=2, grad="unroll", init=init), spd(5).requires_grad_())
