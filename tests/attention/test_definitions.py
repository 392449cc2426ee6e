"""Mechanisms against lra/reference in float64."""

from functools import partial

import pytest
import torch
from conftest import config, experiment, slow
from support import features
from support.features import PATTERNS, TOKEN_SIZES, D, H, check, qkv, sized, tokens
from torch import nn

from lra.attention import fnet
from lra.attention.base import Sizes, as_attn_mask
from lra.attention.dba import DBA
from lra.attention.flare import FLARE
from lra.attention.fnet import FNet
from lra.attention.h_transformer_1d import HTransformer1D
from lra.attention.linformer import Linformer
from lra.attention.luna import Luna
from lra.attention.sdpa import SDPA
from lra.attention.skyformer import Skyformer
from lra.attention.soft import Soft
from lra.attention.softmax import Softmax
from lra.attention.synthesizer import Dense, Factorised, Random
from lra.attention.transformer_ls import TransformerLS
from lra.model.multihead import Multihead
from lra.ops.newton import newton
from lra.ops.pinv import cubic, exact
from lra.reference import fnet as fnet_reference
from lra.reference import h_transformer_1d as hierarchy_reference
from lra.reference import latents as latents_reference
from lra.reference import linformer as linformer_reference
from lra.reference import skyformer as skyformer_reference
from lra.reference import soft as soft_reference
from lra.reference import softmax as softmax_reference
from lra.reference import synthesizer as synthesizer_reference
from lra.reference import transformer_ls as ls_reference

SOFTMAX = [(Softmax, {}, 12), (Softmax, {"checkpoint": True}, 12), (SDPA, {}, 12), (SDPA, {"causal": True}, 130)]
SAMPLES = 3
SIZES = [(3, 4), (8, 4), (9, 4), (45, 4), slow(64, 4), (32, 2), (32, 16), (32, 32), (32, 64)]
KINDS = {"random": Random, "factorised": Factorised, "dense": Dense}
DIM, L = 8, 9
MASK = torch.arange(L) < torch.tensor([L, 6, 1, 0])[:, None]
MASK[0, 4] = MASK[1, 0] = False


@pytest.mark.parametrize(("kind", "options", "length"), SOFTMAX)
def test_softmax_and_sdpa_match_reference(kind, options, length):
    oracle = lambda h, at, q, k, v: softmax_reference.attention(q, k, v, causal=options.get("causal", False))
    check(sized(kind, **options), oracle, length)
    assert as_attn_mask(MASK)[-1].all()


def test_multihead_matches_reference():
    module = Multihead(Softmax, dim=6, heads=2, head_dim=3, length=7).double()
    nn.init.zeros_(module.inputs.bias)
    nn.init.zeros_(module.output.bias)
    x = torch.randn(1, 7, 6, dtype=torch.float64)
    # Rows of the input projection: queries, keys, values; within each, one head after the other.
    W_Q, W_K, W_V = [list(side) for side in module.inputs.weight.view(3, 2, 3, 6).mT]
    expected = softmax_reference.multi_head_attention(x[0], W_Q, W_K, W_V, module.output.weight.T)
    torch.testing.assert_close(module(x)[0], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("scale", ["one", "sqrt"])
def test_flare_matches_reference(scale):
    flare = sized(FLARE, latents=5, scale=scale)
    # The initial attention is nearly uniform, which would hide errors.
    flare.latents.data *= 10
    factor = 1.0 if scale == "one" else D**-0.5
    oracle = lambda h, at, q, k, v: latents_reference.flare(k, v, flare.latents[h], factor)
    check(flare, oracle, shared=True)


@pytest.mark.parametrize("share_heads", [False, True])
@pytest.mark.parametrize("share_kv", [False, True])
def test_linformer_matches_reference(share_heads, share_kv):
    linformer = sized(Linformer, length=16, rank=5, share_heads=share_heads, share_kv=share_kv)
    shape = (1 if share_heads else H, 5, 16)
    shapes = {name: tuple(p.shape) for name, p in linformer.named_parameters()}
    assert shapes == {"compress_k": shape} | ({} if share_kv else {"compress_v": shape})

    def oracle(h, at, q, k, v):
        e, f = (linformer.get_parameter(name)[min(h, shape[0] - 1)][:, at] for name in (min(shapes), max(shapes)))
        return linformer_reference.attention(q, k, v, e, f)

    check(linformer, oracle)


def test_skyformer_matches_reference():
    skyformer = sized(Skyformer, samples=SAMPLES, pinv=exact)

    def oracle(h, at, q, k, v):
        sample = torch.tensor([int(u * len(at)) for u in skyformer.draw.tolist()])
        return skyformer_reference.attention(q, k, v, sample[:SAMPLES], sample[SAMPLES:], ridge=skyformer.ridge)

    check(skyformer, oracle)


def test_skyformer_with_batch_init_is_batch_dependent():
    batch_init, x = sized(Skyformer, samples=SAMPLES, pinv=partial(cubic, steps=1, init="batch")), qkv()
    assert batch_init.batch_dependent and not sized(Skyformer).batch_dependent
    # The largest sum comes from one example, so the others get another starting value in the batch.
    assert not torch.allclose(batch_init(*x), torch.cat([batch_init(*(t[n : n + 1] for t in x)) for n in range(3)]))


@pytest.mark.parametrize(("L", "block"), SIZES)
@pytest.mark.parametrize("neighbours", ["sibling", "both"])
def test_h_transformer_1d_matches_reference(L, block, neighbours):
    oracle = lambda h, at, q, k, v: hierarchy_reference.attention(q, k, v, at, block, neighbours)
    check(sized(HTransformer1D, length=64, block=block, neighbours=neighbours), oracle, L, spread=1.5)


def test_h_transformer_1d_original_takes_smallest_token_budget():
    """An eighth of 8 tokens would be a block of one cell, which has no halves."""
    chain = experiment("experiment=board_chain", "attn=h_transformer_1d_original")
    assert chain.choices({})["attn.block"] == 2 and chain.meta_model is not None


def test_h_transformer_1d_with_large_scores_is_finite():
    q, k, v = (x.detach().float().requires_grad_() for x in qkv(64, spread=60.0))
    out = sized(HTransformer1D, length=64, block=4)(q, k, v)
    out.sum().backward()
    assert out.isfinite().all() and all(x.grad.isfinite().all() for x in (q, k, v))


def synthetic_scores(kind, mixer, h, x):
    """Compute the synthetic scores S (n,n) of head h for the token vectors x (L,d)."""
    if kind == "random":
        return synthesizer_reference.random_scores(mixer.table[h], L)
    if kind == "factorised":
        return synthesizer_reference.factorised_scores(mixer.rows[h], mixer.columns[h], L)
    first = slice(h * D, (h + 1) * D)
    hidden = mixer.hidden.weight[first], mixer.hidden.bias[first]
    return synthesizer_reference.dense_scores(x, *hidden, mixer.scores[h], mixer.bias[h, :, 0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dot_product", [False, True])
@features.PATTERNS
def test_synthesizer_matches_reference(pattern, kind, dot_product):
    torch.manual_seed(0)
    mixer = KINDS[kind](TOKEN_SIZES, dim=DIM, dot_product=dot_product).double().eval()
    if kind == "dense":
        torch.nn.init.normal_(mixer.bias)
    x, mask = tokens(DIM, L), features.masks(L)[pattern]
    *qk, v = mixer.inputs(x).unflatten(-1, (-1, H, D)).permute(2, 0, 3, 1, 4)  # (N,H,L,D) each
    mixed = torch.zeros_like(v)
    for n, real in enumerate(features.all_real(mask, L)):
        for h in range(H):
            scores = synthetic_scores(kind, mixer, h, x[n])
            queries_keys = [part[n, h] for part in qk]
            mixed[n, h] = synthesizer_reference.attention(scores, v[n, h], *queries_keys, real=real)
    expected = mixer.output(mixed.transpose(1, 2).flatten(2))
    features.same_with_gradients(mixer(x, mask), expected, [x, *mixer.parameters()])


@pytest.mark.parametrize("mask", [None, MASK, MASK & False], ids=["no mask", "holes", "padding alone"])
@pytest.mark.parametrize("transform", [FNet(TOKEN_SIZES, dim=DIM), fnet._transform_batch], ids=["module", "batch"])
def test_fnet_matches_reference(transform, mask):
    x = torch.randn(4, L, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    real = torch.ones(4, L, dtype=torch.bool) if mask is None else mask
    expected = torch.zeros_like(x)
    for n in range(4):
        expected[n, real[n]] = fnet_reference.mix(x[n, real[n]])
    features.same_with_gradients(transform(x, real if transform is fnet._transform_batch else mask), expected, x)


def test_fnet_dft_float32_error_is_close_to_torch_fft():
    """Bluestein takes three FFTs of twice the length, so a few times the error of one FFT, also for a prime length."""
    x = torch.randn(2, 16384, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([16384, 9973])
    for example, n in enumerate(lengths.tolist()):
        spectrum = torch.fft.fft(x[example, :n], dim=0)
        fft_error = (torch.fft.fft(x[example, :n].float(), dim=0) - spectrum).norm()
        assert (fnet.dft(x.float(), lengths)[example, :n] - spectrum).norm() < 10 * fft_error


def bottleneck_tokens(soft, at, q):
    """Compute the bottleneck tokens of one head from its real tokens q (n,D) at positions ``at``."""
    window = at // soft.window
    if soft.sample == "conv":
        tokens = q.new_zeros((int(window.max()) + 1) * soft.window, D).index_put((at,), q * D**-0.25)
        return soft.conv(tokens.unflatten(0, (-1, soft.window)).flatten(1))[window.unique()] * D**0.25
    if soft.count is None and soft.sample == "pool":
        # No padding between the real tokens.
        if len(at) == at[-1] + 1:
            return soft_reference.pooled_tokens(q, soft.window)
        return torch.stack([q[window == w].mean(0) for w in window.unique()])
    m = min(soft.count, len(q)) if soft.count else -(-len(q) // soft.window)
    if soft.sample == "pool":
        return torch.stack([q[torch.arange(len(q)) * m // len(q) == s].mean(0) for s in range(m)])
    return q[soft.draw[at].argsort()[:m] if soft.sample == "random" else slice(m)]


SOFT = [
    {}, {"window": 5}, {"count": 6}, {"sample": "conv"}, {"sample": "conv", "activate": False},
    {"sample": "random"}, {"sample": "random", "count": 6}, {"sample": "first"},
    {"sample": "first", "count": 6},
]  # fmt: skip


@pytest.mark.parametrize("options", SOFT, ids=lambda o: "-".join(map(str, o.values())) or "pool")
@pytest.mark.parametrize("normalise", [False, True])
def test_soft_matches_reference(options, normalise):
    """Some windows contain no real token."""
    init, ridge = ("softpp", 0.0) if normalise else ("soft", 0.01)
    pinv = partial(newton, steps=8, init=init, ridge=ridge, grad="unroll")
    soft = sized(Soft, length=32, **options, normalise=normalise, pinv=pinv)

    def oracle(h, at, q, k, v):
        attention = soft_reference.normalised_attention if normalise else soft_reference.attention
        return attention(q, v, bottleneck_tokens(soft, at, q), steps=8, init=init, ridge=ridge)

    check(soft, oracle, 23, shared=True, spread=2.0)


HEADS, LATENTS, WIDTH = 2, 3, 6
LS_DIM, LS_LENGTH, RANK = 6, 11, 3
OPTIONS = {Luna: {"rows": LATENTS}, DBA: {"latents": LATENTS, "width": WIDTH}}


def memory_layer(kind, **options):
    torch.manual_seed(0)
    sizes = Sizes(heads=HEADS, head_dim=DIM // HEADS, value_dim=DIM // HEADS, length=16, dropout=0.1)
    return kind(sizes, dim=DIM, hidden=12, **(OPTIONS[kind] | options)).double().eval()


def maps(query, context, width):
    """Maps of queries, keys and values. Tied keys and values are the same DIM outputs."""
    return query, lambda c: context(c)[:, :width], lambda c: context(c)[:, -DIM:]


def luna_formula(block, tokens, memory):
    pack = maps(block.pack_query, block.pack_context, DIM)
    unpack = maps(block.unpack_query, block.unpack_context, DIM)
    y, packed = latents_reference.luna(tokens, block.packed_norm(memory), pack, unpack, HEADS)
    return y, memory + packed


def dba_formula(block, tokens, memory):
    compress = maps(block.compress_query, block.compress_context, WIDTH)
    latent = maps(block.latent_query, block.latent_context, WIDTH)
    return latents_reference.dba(tokens, memory, compress, latent, block.latent_norm, block.expand, HEADS)


def layer_oracle(block, x, real, memory):
    out, packed = torch.zeros_like(x), torch.zeros_like(memory)
    formula = luna_formula if isinstance(block, Luna) else dba_formula
    for n in range(len(x)):
        y, packed[n] = formula(block, block.token_norm(x[n, real[n]]), memory[n])
        hidden = x[n, real[n]] + block.output(y)
        out[n, real[n]] = hidden + block.mlp(block.mlp_norm(hidden))
    return out, packed


@pytest.mark.parametrize("kind, options", [(Luna, {"tie_kv": True}), (Luna, {"tie_kv": False}), (DBA, {})])
@PATTERNS
def test_luna_and_dba_match_reference_over_two_layers(kind, options, pattern):
    first_layer, second_layer = memory_layer(kind, **options), memory_layer(kind, **options, first=False)
    x, mask = tokens(DIM, L), features.masks(L)[pattern]
    real = features.all_real(mask, L)
    first_out, memory = first_layer(x, mask, None)
    out, last_memory = second_layer(first_out, mask, memory)
    expected, packed = layer_oracle(first_layer, x, real, first_layer.start.expand(3, -1, -1))
    torch.testing.assert_close((first_out[real], memory), (expected[real], packed), rtol=1e-12, atol=1e-12)
    expected, packed = layer_oracle(second_layer, expected, real, packed)
    torch.testing.assert_close(last_memory, packed, rtol=1e-12, atol=1e-12)
    features.same_with_gradients(out[real], expected[real], [x, *first_layer.parameters(), *second_layer.parameters()])


@pytest.mark.parametrize("words", [("luna", "attn.rows=4"), ("dba",)])
def test_only_first_layer_has_initial_memory_parameter(words):
    model = config(*words, "task.length=32").classifier()
    assert [name for name, _ in model.named_parameters() if name.endswith("start")] == ["blocks.0.start"]


@PATTERNS
@pytest.mark.parametrize("window, kernel", [(1, 0), (2, 0), (4, 0), (5, 0), (11, 0), (16, 0), (4, 1), (4, 3), (4, 5)])
@torch.no_grad()
def test_transformer_ls_matches_reference(pattern, window, kernel):
    """Padded positions are compared too: they hold output(0)."""
    torch.manual_seed(0)
    mixer = TransformerLS(TOKEN_SIZES, dim=LS_DIM, rank=RANK, window=window, kernel=kernel).double().eval()
    for norm in (mixer.token_norm, mixer.compressed_norm):
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    if kernel:
        assert not mixer.conv.weight.any()
        torch.nn.init.normal_(mixer.conv.weight)
    x, mask = tokens(LS_DIM, LS_LENGTH), features.masks(LS_LENGTH)[pattern]
    real = features.all_real(mask, LS_LENGTH)
    mixed = torch.zeros(len(x), LS_LENGTH, H * D, dtype=x.dtype)
    for n in range(len(x)):
        at = real[n].nonzero()[:, 0]
        q, k, v = mixer.inputs(x[n, at]).split(H * D, -1)  # (n,H D)
        k, v = mixer.token_norm(k), mixer.token_norm(v)
        options = {"heads": H, "window": window, "norm": mixer.compressed_norm}
        mixed[n, at] = ls_reference.attention(q, k, v, mixer.project(x[n, at]), at, **options)
        if kernel:
            mixed[n] += ls_reference.convolution(v, at, mixer.conv.weight[:, 0, :, 0], LS_LENGTH)
    torch.testing.assert_close(mixer(x, mask), mixer.output(mixed), rtol=1e-11, atol=1e-12)
