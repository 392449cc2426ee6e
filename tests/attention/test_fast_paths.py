"""Faster forms of an operation against its definition: outputs and gradients, with padding, and rounding in float32."""

import pytest
import torch
from support.features import same_with_gradients

from lra.attention import fnet
from lra.attention.base import Sizes
from lra.attention.cosformer import CosFormer
from lra.attention.h_transformer_1d import HTransformer1D
from lra.attention.hedgehog import Hedgehog
from lra.attention.linear import RFA, Linear, Performer
from lra.attention.longformer import Longformer
from lra.attention.lru import LRU
from lra.attention.s5 import S5
from lra.ops import diagonal_recurrence, linear_attention, segment_means

N, H, L, D = 4, 2, 128, 4
SIZES = Sizes(heads=H, head_dim=D, value_dim=D, length=L)


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def mask(length=L, holes=False):
    """A full sequence, a prime number of real tokens, one, and none."""
    real = torch.arange(length) < torch.tensor([length, 97 * length // 128, 1, 0])[:, None]
    if holes:
        real &= torch.rand(N, length, generator=torch.Generator().manual_seed(1)) < 0.6
    return real


@pytest.mark.parametrize("holes", [False, True])
def test_fnet_of_each_sequence_is_that_of_the_batch(holes):
    x, real = normal(N, L, 6), mask(holes=holes)
    same_with_gradients(fnet._transform_each(x, real), fnet._transform_batch(x, real), x)


def test_fnet_of_padding_alone_is_zero():
    x = normal(2, 5, 6)
    out = fnet.FNet(SIZES, dim=6)(x, torch.zeros(2, 5, dtype=torch.bool))
    assert (out == 0).all() and (torch.autograd.grad(out.sum(), x)[0] == 0).all()


@pytest.mark.parametrize("count", [1, 7, 16, 200])
@pytest.mark.parametrize("holes", [False, True])
def test_segment_means_are_means_over_the_listed_tokens(count, holes):
    x = normal(N, H, L, D)
    for real in (mask(holes=holes), None):
        (means,), is_used = segment_means.segment_means(real, count, x)
        real = torch.ones(N, L, dtype=torch.bool) if real is None else real
        expected = torch.zeros(N, H, count, D, dtype=torch.float64)
        used = torch.zeros(N, count, dtype=torch.bool)
        for n in range(N):
            tokens = real[n].nonzero()[:, 0]
            c = min(count, len(tokens))
            segment = torch.arange(len(tokens)) * c // max(len(tokens), 1)
            used[n, :c] = True
            for number in range(c):
                expected[n, :, number] = x[n][:, tokens[segment == number]].mean(1)
        same_with_gradients(means, expected, x)
        assert used.all() if is_used is None else torch.equal(is_used, used)


@pytest.mark.parametrize("block", [2, 16, 64, 128])
def test_h_transformer_with_constant_counts_is_that_with_counted_tokens(block):
    q, k, v = (normal(N, H, L, D, seed=seed) for seed in range(3))
    module = HTransformer1D(SIZES, block=block)
    same_with_gradients(module(q, k, v), module(q, k, v, torch.ones(N, L, dtype=torch.bool)), (q, k, v))


@pytest.mark.parametrize(("window", "global_tokens"), [(9, 0), (20, 3), (512, 1)])
def test_longformer_with_the_mask_among_the_keys_is_its_definition(window, global_tokens):
    """Values as wide as keys on a CPU; tests/ops/test_blocks.py has the other path."""
    q, k, v = (normal(N, H, L, D, seed=seed) for seed in range(3))
    real = mask(holes=True)
    module = Longformer(SIZES, window=window, global_tokens=global_tokens)
    i, j = torch.arange(L)[:, None], torch.arange(L)
    allowed = (j - i >= -((window - 1) // 2)) & (j - i <= window // 2) | (i < global_tokens) | (j < global_tokens)
    allowed = allowed & real[:, None, None]
    scores = (q @ k.mT * D**-0.5).masked_fill(~allowed, -1e30)
    out, expected = (x.transpose(1, 2)[real] for x in (module(q, k, v, real), scores.softmax(-1) @ v))
    same_with_gradients(out, expected, (q, k, v))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 255, 256, 300])
def test_scan_in_two_levels_is_the_recurrence(length, reverse):
    """One chunk, whole and broken chunks, and chunks of chunks."""
    radius, phase = torch.rand(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    decay = torch.polar(radius, 6 * phase).requires_grad_()
    inputs = torch.view_as_complex(normal(2, length, 5, 2).detach()).requires_grad_()
    state = torch.zeros(2, 5, dtype=torch.complex128)
    expected = [None] * length
    for t in reversed(range(length)) if reverse else range(length):
        state = decay * state + inputs[:, t]
        expected[t] = state
    same_with_gradients(
        diagonal_recurrence.diagonal_scan(decay, inputs, reverse=reverse), torch.stack(expected, 1), (decay, inputs)
    )


@pytest.mark.parametrize("floor", [1e-6, 5.0])
@pytest.mark.parametrize("offset", [0.0, 0.1])
def test_linear_attention_in_one_product_are_the_quotient_of_two(floor, offset):
    q, k, v = (normal(N, H, L, D, seed=seed) for seed in range(3))
    q, k = q.abs(), k.abs()
    for real in (mask(), mask(holes=True), None):
        weight = torch.ones(N, 1, L, 1) if real is None else real[:, None, :, None].double()
        phi_q, phi_k = q + offset, (k + offset) * weight
        total = weight.sum(2, keepdim=True).clamp(min=1)
        expected = phi_q @ (phi_k.mT @ v) / total / (phi_q @ phi_k.sum(2)[..., None] / total).clamp(min=floor)
        same_with_gradients(linear_attention.attend(q, k, v, real, floor, offset), expected, (q, k, v))


EPS = torch.finfo(torch.float32).eps
ROUNDED = [
    (Linear, {}),
    (Performer, {"redraw": "never"}),
    (Performer, {"kernel": "relu", "redraw": "never"}),
    (RFA, {"redraw": "never"}),
    (CosFormer, {}),
    (Hedgehog, {}),
    (HTransformer1D, {}),
    (Longformer, {"window": 63}),
    (fnet.FNet, {"dim": 8}),
    (LRU, {"dim": 8, "r_max": 0.99}),
    (S5, {"dim": 8}),
]


@pytest.mark.parametrize(("kind", "options"), ROUNDED, ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_rounding_in_float32_is_a_sum_of_random_errors(kind, options, masked):
    """n terms with relative errors up to EPS, of random sign, give √n EPS of the norm; n is the length or more.

    The recurrences multiply their phase, which is rounded, by up to n: an error of n EPS of the slowest states.
    """
    length, real = 1024, mask(1024)
    torch.manual_seed(0)
    module = kind(Sizes(heads=H, head_dim=D, value_dim=D, length=length), **options).eval()
    shape = (N, length, 8) if "dim" in options else (N, H, length, D)
    given = [normal(*shape, seed=seed) for seed in range(1 if "dim" in options else 3)]
    results = []
    for dtype in (torch.float32, torch.float64):
        module.to(dtype)
        leaves = [x.detach().to(dtype).requires_grad_() for x in given]
        out = module(*leaves, real if masked else None)
        out = out.movedim(-2, 1).flatten(2) * (real[..., None] if masked else 1)
        weight = normal(*out.shape, seed=7).detach().to(dtype)
        results.append([out, *torch.autograd.grad((out * weight).sum(), leaves)])
    tolerance = (length if kind in (LRU, S5) else length**0.5) * EPS
    for rounded, exact in zip(*results, strict=True):
        assert (rounded - exact).norm() < tolerance * exact.norm()
