"""Operations of state-space models: sums over lags, gradients, HiPPO, precision and memory.

``tests/attention/test_recurrent.py`` compares kernels with released ones, and scans with recurrences.
"""

import itertools

import pytest
import torch

from lra.bench.measure import peak_bytes
from lra.ops.diagonal_recurrence import diagonal_scan
from lra.ops.ssm import fft_conv, hippo_legs, long_conv, pack_bidirectional, s4d_kernel

H, M = 3, 4


def parameters(dtype=torch.float64) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)
    step, decay, frequency = draw(H) - 3, draw(H, M) - 1, 4 * draw(H, M)
    c = torch.complex(draw(H, M), draw(H, M))
    kind = torch.complex64 if dtype == torch.float32 else torch.complex128
    return [step.to(dtype), decay.to(dtype), frequency.to(dtype), c.to(kind)]


@pytest.mark.parametrize("discretisation", ["zoh", "bilinear"])
def test_kernel_gradients(discretisation):
    given = [x.requires_grad_() for x in parameters()]
    assert torch.autograd.gradcheck(lambda *x: s4d_kernel(*x, 11, discretisation=discretisation), given)


@pytest.mark.parametrize("discretisation", ["zoh", "bilinear"])
def test_kernel_in_single_precision(discretisation):
    """The phase l Δ ω is rounded to 2^-24 of itself; while it grows the decay shrinks the term that it turns."""
    exact = s4d_kernel(*parameters(), 2000, discretisation=discretisation)
    found = s4d_kernel(*parameters(dtype=torch.float32), 2000, discretisation=discretisation)
    assert (found - exact).abs().max() < 2e-5 * exact.abs().max()


def test_kernel_of_path_x_takes_an_eighth_of_what_all_powers_would():
    """256 channels, 32 states, 16,384 lags: exp(l Δ A) alone is 1.07 GB of complex64."""
    channels, states, length = 256, 32, 16_384
    given = [torch.full((channels,), -5.0), torch.zeros(channels, states), torch.rand(channels, states) * 100]
    given = [x.requires_grad_() for x in (*given, torch.randn(channels, states, dtype=torch.complex64))]
    peak = peak_bytes(lambda: s4d_kernel(*given, length).sum().backward())
    assert peak < 8 * channels * states * length / 8


def test_scan_keeps_the_states_alone():
    shapes = (M,), (2, 500, M)
    decay, inputs = (torch.rand(shape, dtype=torch.complex128, requires_grad=True) for shape in shapes)
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        diagonal_scan(decay, inputs)
    assert sum(sizes) == decay.numel() + inputs.numel()


@pytest.mark.parametrize("n", [1, 2, 8, 33])
def test_hippo_is_the_normal_part(n):
    """S is built here entry by entry from A and P."""
    S = torch.zeros(n, n, dtype=torch.complex128)
    for i, j in itertools.product(range(n), repeat=2):
        A = -((2 * i + 1) ** 0.5) * (2 * j + 1) ** 0.5 if i > j else -(i + 1) if i == j else 0
        S[i, j] = A + ((i + 0.5) * (j + 0.5)) ** 0.5
    values, vectors = hippo_legs(n)
    torch.testing.assert_close(vectors @ torch.diag(values) @ vectors.mH, S, rtol=1e-10, atol=1e-10 * n)
    torch.testing.assert_close(vectors @ vectors.mH, torch.eye(n).to(S), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(values.imag, -values.imag.flip(0), rtol=1e-9, atol=1e-9)
    assert (values.real == -0.5).all()


def convolution(u, kernel, mask):
    """Sums over lags, written out."""
    L = u.shape[-1]
    n = 2 * L if kernel.shape[1] == L else kernel.shape[1]
    out = torch.zeros_like(u)
    for t, s in itertools.product(range(L), repeat=2):
        lag = (t - s) % n
        if lag < kernel.shape[1]:
            real = 1 if mask is None else mask[:, None, s]
            out[..., t] += kernel[:, lag] * u[..., s] * real
    return out


@pytest.mark.parametrize(("wide", "masked"), itertools.product([1, 2], [False, True]))
@pytest.mark.parametrize("length", [1, 5, 12])
def test_fft_conv_is_the_sum_over_lags(length, wide, masked):
    g = torch.Generator().manual_seed(length)
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)
    u, kernel = draw(2, H, length), draw(H, wide * length)
    mask = torch.rand(2, length, generator=g) < 0.7 if masked else None
    torch.testing.assert_close(fft_conv(u, kernel, mask), convolution(u, kernel, mask), rtol=1e-12, atol=1e-12)
    given = u.requires_grad_(), kernel.requires_grad_()
    assert torch.autograd.gradcheck(lambda u, k: fft_conv(u, k, mask), given)


def test_a_long_convolution_is_of_float32_inside_autocast():
    g = torch.Generator().manual_seed(1)
    x, skip, kernels = (torch.randn(*shape, generator=g) for shape in ((2, 9, H), (H,), (2, H, 9)))
    mask = torch.rand(2, 9, generator=g) < 0.7
    given = x.bfloat16(), skip, lambda _: pack_bidirectional(kernels)
    with torch.autocast("cpu", torch.bfloat16):
        inside = long_conv(*given, mask)
    torch.testing.assert_close(inside, long_conv(given[0].float(), *given[1:], mask), rtol=0, atol=0)
