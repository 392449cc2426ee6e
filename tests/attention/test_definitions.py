"""Mechanisms, LSH attention and Nystromformer's convolution against their equations, in float64."""

import cmath
from functools import cache, partial

import pytest
import torch
from support.features import (
    LENGTH,
    PATTERNS,
    TOKEN_SIZES,
    D,
    H,
    all_real,
    check,
    masks,
    mean,
    qkv,
    same_with_gradients,
    sized,
    tokens,
)
from torch import nn

from lra.attention.base import Sizes
from lra.attention.conv import Conv
from lra.attention.flare import FLARE
from lra.attention.fnet import FNet, dft
from lra.attention.h_transformer_1d import HTransformer1D
from lra.attention.linformer import Linformer
from lra.attention.reformer import Reformer
from lra.attention.sdpa import SDPA
from lra.attention.skyformer import Skyformer
from lra.attention.softmax import Softmax
from lra.attention.synthesizer import Dense, Factorised, Random
from lra.model.multihead import Multihead
from lra.ops.convolution import convolve_sequence
from lra.ops.pinv import cubic, exact
from lra.reference import linformer as linformer_reference
from lra.reference import softmax as softmax_reference
from lra.reference.soft import gaussian_kernel


@pytest.mark.parametrize(
    "made", [sized(Softmax), sized(Softmax, checkpoint=True), sized(SDPA), sized(SDPA, causal=True)]
)
def test_softmax(made):
    check(made, lambda h, at, q, k, v: softmax_reference.attention(q, k, v, causal=made.causal))


def test_multi_head_softmax():
    module = Multihead(Softmax, dim=6, heads=2, head_dim=3, length=7).double()
    nn.init.zeros_(module.inputs.bias)
    nn.init.zeros_(module.output.bias)
    x = torch.randn(1, 7, 6, dtype=torch.float64)
    # Rows of the input projection: queries, keys and values, each head by head.
    heads = module.inputs.weight.view(3, 2, 3, 6).mT  # (side,head,dim,head_dim)
    W_Q, W_K, W_V = [list(side) for side in heads]
    expected = softmax_reference.multi_head_attention(x[0], W_Q, W_K, W_V, module.output.weight.T)
    torch.testing.assert_close(module(x)[0], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("scale", ["one", "sqrt"])
def test_flare(scale):
    flare = sized(FLARE, latents=5, scale=scale)
    flare.latents.data *= 10  # far from the nearly uniform map of the start

    def oracle(h, at, q, k, v):
        scores = (k @ flare.latents[h].T / (1 if scale == "one" else D**0.5)).exp()  # (n,latents)
        return mean(scores, mean(scores.T, v))

    check(flare, oracle, shared=True)


@pytest.mark.parametrize("share_heads", [False, True])
@pytest.mark.parametrize("share_kv", [False, True])
def test_linformer(share_heads, share_kv):
    linformer = sized(Linformer, length=16, rank=5, share_heads=share_heads, share_kv=share_kv)
    shape = (1 if share_heads else H, 5, 16)
    names = {name: tuple(p.shape) for name, p in linformer.named_parameters()}
    assert names == {"compress_k": shape} | ({} if share_kv else {"compress_v": shape})

    def oracle(h, at, q, k, v):
        e, f = (linformer.get_parameter(name)[min(h, shape[0] - 1)][:, at] for name in (min(names), max(names)))
        return linformer_reference.attention(q, k, v, e, f)

    check(linformer, oracle)


SAMPLES = 3  # queries of Skyformer, and as many keys


def test_skyformer():
    """With the true inverse; tests/ops/test_pinv.py compares the iteration with its recurrence."""
    skyformer = sized(Skyformer, samples=SAMPLES, pinv=exact)

    def oracle(h, at, q, k, v):
        drawn = [int(u * len(at)) for u in skyformer.draw.tolist()]
        s = torch.cat([q[drawn[:SAMPLES]], k[drawn[SAMPLES:]]])
        m = gaussian_kernel(s, s) + skyformer.ridge * torch.eye(2 * SAMPLES, dtype=s.dtype)
        r = torch.diag(m.sum(1) ** -0.5)
        return gaussian_kernel(q, s) @ r @ torch.linalg.inv(r @ m @ r) @ r @ gaussian_kernel(s, k) @ v

    check(skyformer, oracle)


def test_one_start_of_skyformers_inverse_for_the_batch_is_announced():
    batch, x = sized(Skyformer, samples=SAMPLES, pinv=partial(cubic, steps=1, init="batch")), qkv()
    assert batch.batch_dependent and not sized(Skyformer).batch_dependent
    alone = torch.cat([batch(*(t[n : n + 1] for t in x)) for n in range(3)])  # one of them has the largest sum
    assert not torch.allclose(batch(*x), alone)


BLOCK = 4


def level(i, j):
    """0 in the same block or its sibling, else the level of which their blocks are siblings."""
    i, j, found = i // BLOCK, j // BLOCK, 0
    while i // 2 != j // 2:
        i, j, found = i // 2, j // 2, found + 1
    return found


@pytest.mark.parametrize("L", [3, 8, 9, 45, 64])
def test_h_transformer_1d(L):
    """Scores of the means of both cells, one pair of positions after the other."""

    def oracle(h, at, q, k, v):
        mean_of = cache(lambda keys, place, size: (k if keys else q)[at // size == place].mean(0))
        rows = []
        for i in at.tolist():
            cells = [(j, 2 ** level(i, j)) for j in at.tolist()]
            scores = torch.stack([mean_of(0, i // size, size) @ mean_of(1, j // size, size) for j, size in cells])
            rows.append((scores / D**0.5).softmax(0) @ v)
        return torch.stack(rows)

    check(sized(HTransformer1D, length=64, block=BLOCK), oracle, L, spread=1.5)


def test_large_scores_of_one_level_of_h_transformer_1d_do_not_overflow_another():
    q, k, v = (x.detach().float().requires_grad_() for x in qkv(64, spread=60.0))
    out = sized(HTransformer1D, length=64, block=BLOCK)(q, k, v)
    out.sum().backward()
    assert out.isfinite().all() and all(x.grad.isfinite().all() for x in (q, k, v))


KINDS = {"random": Random, "factorised": Factorised, "dense": Dense}
DIM, L = 8, 9


def synthesized(kind, mixer, h, x):
    """S (n,n) of head h and the token vectors x (L,d)."""
    if kind == "random":
        return mixer.table[h, :L, :L]
    if kind == "factorised":
        return mixer.rows[h, :L] @ mixer.columns[h, :L].T
    first = slice(h * D, (h + 1) * D)
    hidden = torch.relu(x @ mixer.hidden.weight[first].T + mixer.hidden.bias[first])
    return hidden @ mixer.scores[h, :L].T + mixer.bias[h, :L, 0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dot_product", [False, True])
@PATTERNS
def test_synthesizer(pattern, kind, dot_product):
    """softmax(S) v, or softmax(S + q kᵀ / √D) v."""
    torch.manual_seed(0)
    mixer = KINDS[kind](TOKEN_SIZES, dim=DIM, dot_product=dot_product).double().eval()
    if kind == "dense":
        torch.nn.init.normal_(mixer.bias)
    x, mask = tokens(DIM, L), masks(L)[pattern]
    *qk, v = mixer.inputs(x).unflatten(-1, (-1, H, D)).permute(2, 0, 3, 1, 4)  # (N,H,L,D) each
    mixed = torch.zeros_like(v)
    for n, real in enumerate(all_real(mask, L)):
        for h in range(H):
            scores = synthesized(kind, mixer, h, x[n]) + (qk[0][n, h] @ qk[1][n, h].T / D**0.5 if qk else 0)
            mixed[n, h] = mean(scores.exp() * real, v[n, h])
    expected = mixer.output(mixed.transpose(1, 2).flatten(2))
    same_with_gradients(mixer(x, mask), expected, [x, *mixer.parameters()])


MASK = torch.arange(L) < torch.tensor([L, 6, 1, 0])[:, None]
MASK[0, 4] = MASK[1, 0] = False


def fourier(n):
    rows = [[cmath.exp(-2j * cmath.pi * j * k / n) for j in range(n)] for k in range(n)]
    return torch.tensor(rows, dtype=torch.complex128).view(n, n)


def test_fnet_is_the_double_sum_over_the_real_tokens():
    x = torch.randn(4, L, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    made = FNet(TOKEN_SIZES, dim=DIM)
    for mask in (None, MASK):
        want = torch.zeros(4, L, DIM, dtype=torch.float64)
        for n in range(4):
            real = torch.arange(L) if mask is None else mask[n].nonzero().flatten()
            want[n, real] = (fourier(len(real)) @ x[n, real].cdouble() @ fourier(DIM)).real
        same_with_gradients(made(x, mask), want, x)


def test_long_rows_of_fnet_are_as_exact_in_float32_as_a_transform_is():
    """Three transforms of twice the length in place of one: a few times its error, whatever the length."""
    x = torch.randn(2, 16384, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([16384, 9973])  # a power of two and a prime
    for row, n in enumerate(lengths.tolist()):
        want = torch.fft.fft(x[row, :n], dim=0)
        plain = (torch.fft.fft(x[row, :n].float(), dim=0) - want).norm()
        assert (dft(x.float(), lengths)[row, :n] - want).norm() < 10 * plain


def sees(x, rotations, made, same_bucket):
    """Which real keys each real token x (n,D) sees in one round, (n,n); rotations (D, buckets / 2)."""
    turned = x @ rotations
    bucket = torch.cat([turned, -turned], -1).argmax(-1) if made.buckets > 1 else torch.zeros(len(x))
    chunk = bucket.argsort(stable=True).argsort() // made.chunk
    back = chunk[:, None] - chunk
    near = (back == 0) | (back == 1)
    return (near & (bucket[:, None] == bucket) if same_bucket else near).double()


def check_scores(made, scope, power, unit_keys=True, own_last=True):
    def oracle(h, at, q, k, v):
        times = sum(sees(q.detach(), R, made, scope == "bucket") for R in made.rotations[h])
        times = times.clamp(max=1) if scope == "bucket" else times  # a key of several rounds counts once, or in each
        if own_last:
            alone = times.sum(-1) == times.diagonal()
            times = torch.where(torch.eye(len(q), dtype=torch.bool) & ~alone[:, None], 0.0, times)
        keys = q / q.norm(dim=-1, keepdim=True) if unit_keys else q
        return mean((q @ keys.T * D**power).exp() * times, v)

    check(made, oracle, 37, shared=True)


@pytest.mark.parametrize("scope", ["chunk", "bucket"])
@pytest.mark.parametrize("hashes", [1, 2, 4])
@pytest.mark.parametrize(("chunk", "buckets"), [(4, None), (5, 6), (16, 2), (3, 16), (LENGTH, 1), (None, 1)])
def test_reformer(scope, hashes, chunk, buckets):
    check_scores(sized(Reformer, hashes=hashes, chunk=chunk, buckets=buckets, scope=scope), scope=scope, power=-0.5)


@pytest.mark.parametrize("power", [0, 0.5])
@pytest.mark.parametrize("unit_keys", [True, False])
@pytest.mark.parametrize("own_last", [True, False])
def test_scores(power, unit_keys, own_last):
    rules = {"power": power, "unit_keys": unit_keys, "own_last": own_last, "scope": "chunk"}
    check_scores(sized(Reformer, chunk=6, **rules), **rules)


def test_chunks_and_buckets_default_to_each_other():
    made = sized(Reformer, length=2048)
    assert (made.chunk, made.buckets) == (64, 64)  # the mean bucket holds half a chunk
    made = sized(Reformer, length=2048, chunk=None, buckets=10)
    assert (made.chunk, made.buckets) == (205, 10)


CONV_DIM, CONV_LENGTH = 3, 70  # more positions than one block of the product
SIZES = Sizes(heads=1, head_dim=CONV_DIM, value_dim=CONV_DIM, length=CONV_LENGTH)


def make(**options) -> Conv:
    torch.manual_seed(0)
    return Conv(SIZES, dim=CONV_DIM, **options).double()


def conv_reference(model: Conv, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """One sum for each output: the weight of a distance is that of its tap, the token itself being the middle one."""
    v, width = x @ model.values.weight.T + model.values.bias, model.filters.shape[1]
    here = width - 1 if model.causal else width // 2
    rows = []
    for n in range(len(x)):
        for i in range(CONV_LENGTH):
            seen = [
                (j, model.filters[:, here + j - i])
                for j in range(CONV_LENGTH)
                if 0 <= here + j - i < width and mask[n, j]
            ]
            rows.append(sum(w * v[n, j] for j, w in seen) / sum(w.abs() for _, w in seen) if seen else 0 * v[0, 0])
    return torch.stack(rows).view_as(x) @ model.output.weight.T + model.output.bias


@pytest.mark.parametrize("options", [{"width": 1}, {"width": 5}, {"width": 61}, {"width": 4, "causal": True}])
def test_sums_over_real_neighbours(options):
    model = make(**options)
    x = torch.randn(2, CONV_LENGTH, CONV_DIM, dtype=torch.float64)
    mask = torch.stack([torch.arange(CONV_LENGTH) < 66, torch.rand(CONV_LENGTH) < 0.5])
    mask[1, 0] = True
    out, want = model(x, mask), conv_reference(model, x, mask)
    torch.testing.assert_close(out[mask], want[mask], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(model(x), conv_reference(model, x, torch.ones_like(mask)), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("heads, kernel", [(1, 1), (1, 35), (2, 3), (2, 35), (3, 65), (2, 201)])
@pytest.mark.parametrize("L", [1, 12, 20, 46, 64, 65, 256])
def test_rows_are_multiplied_by_the_banded_matrix_of_a_filter(heads, kernel, L):
    """Output and gradients, at lengths for which torch's own convolution gives another gradient too."""
    torch.manual_seed(0)
    filters, v = torch.randn(heads, 1, kernel, 1).double(), torch.randn(2, heads, L, 5).double()
    tap = torch.arange(L) - torch.arange(L)[:, None] + kernel // 2
    inside = (tap >= 0) & (tap < kernel)
    band = filters.requires_grad_()[:, 0, :, 0][:, tap.clamp(0, kernel - 1)] * inside  # (H,L,L)
    same_with_gradients(convolve_sequence(v.requires_grad_(), filters), band @ v, (v, filters))
