"""State-space operations against literal recurrences, step by step in float64."""

import itertools

import pytest
import scipy.linalg
import torch

from lra.bench.measure import peak_bytes
from lra.ops.ssm import both_ways, diagonal_scan, fft_conv, hippo_legs, long_conv, s4d_kernel

H, M = 3, 4


def parameters(shared: bool = False, dtype=torch.float64, seed: int = 0) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    rows = 1 if shared else H
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)
    step, decay, frequency = draw(H) - 3, draw(rows, M) - 1, 4 * draw(rows, M)
    c = torch.complex(draw(H, M), draw(H, M))
    kind = torch.complex64 if dtype == torch.float32 else torch.complex128
    return [step.to(dtype), decay.to(dtype), frequency.to(dtype), c.to(kind)]


def impulse_response(step, decay, frequency, c, length, discretisation):
    """y_k of x' = A x + u, y = 2 Re(c x), for u = 1, 0, 0, ..., discretised by dense matrix functions."""
    out = torch.zeros(H, length, dtype=torch.float64)
    for h, row in enumerate(torch.complex(-decay.exp(), frequency).expand(H, -1)):
        A, dt, eye = torch.diag(row).numpy(), step[h].exp().item(), torch.eye(M).numpy()
        if discretisation == "zoh":  # exp of [[A, I], [0, 0]] dt has both the transition and the integral
            block = scipy.linalg.expm(dt * _augmented(A))
            transition, gain = block[:M, :M], block[:M, M:]
        else:
            inverse = scipy.linalg.inv(eye - dt / 2 * A)
            transition, gain = inverse @ (eye + dt / 2 * A), dt * inverse
        x = torch.from_numpy(gain @ torch.ones(M, dtype=torch.complex128).numpy())
        for k in range(length):
            out[h, k] = 2 * (c[h] * x).sum().real
            x = torch.from_numpy(transition) @ x
    return out


def _augmented(A):
    block = torch.zeros(2 * M, 2 * M, dtype=torch.complex128)
    block[:M, :M], block[:M, M:] = torch.from_numpy(A), torch.eye(M)
    return block.numpy()


@pytest.mark.parametrize("length", [1, 2, 16, 50])
@pytest.mark.parametrize("discretisation", ["zoh", "bilinear"])
@pytest.mark.parametrize("shared", [False, True])
def test_kernel_is_the_impulse_response(length, discretisation, shared):
    given = parameters(shared)
    found = s4d_kernel(*given, length, discretisation=discretisation)
    torch.testing.assert_close(found, impulse_response(*given, length, discretisation), rtol=1e-10, atol=1e-12)


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


def test_unknown_discretisation_is_refused():
    with pytest.raises(ValueError, match="discretisation must be one of zoh, bilinear, not 'euler'"):
        s4d_kernel(*parameters(), 4, discretisation="euler")


def recurrence(decay, inputs, mask, reverse):
    x, states = torch.zeros_like(inputs[:, 0]), [None] * inputs.shape[1]
    order = reversed(range(inputs.shape[1])) if reverse else range(inputs.shape[1])
    for k in order:
        u = inputs[:, k] if mask is None else inputs[:, k] * mask[:, k, None]
        x = decay * x + u
        states[k] = x
    return torch.stack(states, 1)


def scan_inputs(length: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(length)
    draw = lambda *shape: torch.complex(*torch.randn(2, *shape, generator=g, dtype=torch.float64))
    decay = torch.polar(torch.rand(M, generator=g, dtype=torch.float64), 3 * torch.rand(M, generator=g).double())
    return [decay, draw(2, length, M)]


@pytest.mark.parametrize(
    ("length", "masked", "reverse"), itertools.product([1, 2, 7, 32, 61], [False, True], [False, True])
)
def test_scan_is_the_recurrence(length, masked, reverse):
    decay, inputs = scan_inputs(length)
    mask = torch.rand(2, length, generator=torch.Generator().manual_seed(1)) < 0.6 if masked else None
    found = diagonal_scan(decay, inputs, mask=mask, reverse=reverse)
    torch.testing.assert_close(found, recurrence(decay, inputs, mask, reverse), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("masked", "reverse"), itertools.product([False, True], repeat=2))
def test_scan_gradients(masked, reverse):
    """Finite differences, and the gradients of the recurrence written out."""
    decay, inputs = (x.requires_grad_() for x in scan_inputs(9))
    mask = torch.tensor([[True] * 5 + [False] * 4, [False, True] * 4 + [True]]) if masked else None
    assert torch.autograd.gradcheck(lambda a, u: diagonal_scan(a, u, mask=mask, reverse=reverse), (decay, inputs))
    weight = torch.randn(2, 9, M, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    grads = [
        torch.autograd.grad((f * weight).real.sum(), (decay, inputs))
        for f in (diagonal_scan(decay, inputs, mask=mask, reverse=reverse), recurrence(decay, inputs, mask, reverse))
    ]
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-12, atol=1e-12)


def test_scan_keeps_the_states_alone():
    decay, inputs = (x.requires_grad_() for x in scan_inputs(500))
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
    u, kernel = (
        torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((2, H, length), (H, wide * length))
    )
    mask = torch.rand(2, length, generator=g) < 0.7 if masked else None
    torch.testing.assert_close(fft_conv(u, kernel, mask), convolution(u, kernel, mask), rtol=1e-12, atol=1e-12)
    given = u.requires_grad_(), kernel.requires_grad_()
    assert torch.autograd.gradcheck(lambda u, k: fft_conv(u, k, mask), given)


def test_a_long_convolution_is_of_float32_inside_autocast():
    g = torch.Generator().manual_seed(1)
    x, skip, kernels = (torch.randn(*shape, generator=g) for shape in ((2, 9, H), (H,), (2, H, 9)))
    mask = torch.rand(2, 9, generator=g) < 0.7
    given = x.bfloat16(), skip, lambda _: both_ways(kernels)
    with torch.autocast("cpu", torch.bfloat16):
        inside = long_conv(*given, mask)
    torch.testing.assert_close(inside, long_conv(given[0].float(), *given[1:], mask), rtol=0, atol=0)
