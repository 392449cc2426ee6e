"""Local, sparse, Longformer, BigBird, Sinkhorn and LSH attention, and convolutions, against lra/reference."""

from functools import partial

import pytest
import torch
from support.features import TOKEN_SIZES, D, E, H, check, masks, qkv, same_with_gradients, sized, tokens

from lra.attention.bigbird import BigBird
from lra.attention.conv import Conv
from lra.attention.hyena import Hyena
from lra.attention.local import Local
from lra.attention.long_conv import LongConv
from lra.attention.longformer import Longformer
from lra.attention.reformer import Reformer
from lra.attention.sinkhorn import Sinkhorn
from lra.attention.sparse import Sparse
from lra.ops import blocks
from lra.ops.convolution import convolve_sequence
from lra.reference import convolution as convolution_reference
from lra.reference import reformer as reformer_reference
from lra.reference import sinkhorn as sinkhorn_reference
from lra.reference import sparse as sparse_reference

L = 37
# More positions than one block (64) of the product.
CONV_LENGTH = 70


def check_pairs(layer, sees, value_dim=E):
    """Compare with softmax attention to the visible keys; sees(positions) (n,n) says which key each query sees."""
    check(layer, lambda h, at, q, k, v: sparse_reference.attention(q, k, v, sees(at)), L, value_dim=value_dim)


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (3, H)])
def test_query_without_keys_has_zero_output_and_gradient(shape):
    q, k, v = (t.unflatten(2, (2, 4)) for t in qkv(8))
    allowed = torch.rand(*shape, 2, 4, 4) < 0.5
    allowed[:, :, 1, 2] = False
    scores = q @ k.mT * D**-0.5
    part = blocks.attend_part(scores, v, allowed)
    for out in (blocks.attend_blocks(q, k, v, allowed), blocks.normalise_parts([part])):
        assert (out[:, :, 1, 2] == 0).all()
        weights = scores.exp() * allowed
        torch.testing.assert_close(out, weights @ v / weights.sum(-1, keepdim=True).clamp(min=1e-300))
        for grad in torch.autograd.grad(out.sum(), (q, k, v), retain_graph=True):
            assert grad.isfinite().all()
        assert (torch.autograd.grad(out.sum(), q, retain_graph=True)[0][:, :, 1, 2] == 0).all()


def test_merge_matches_one_softmax_over_distant_scores():
    scores, v = torch.randn(5, 12, dtype=torch.float64) * 300, torch.randn(12, 4, dtype=torch.float64)
    allowed = torch.rand(5, 12) < 0.5
    allowed[:, 3], allowed[0, 6:] = True, False
    halves = [blocks.attend_part(scores[:, s], v[s], allowed[:, s]) for s in (slice(6), slice(6, 12))]
    expected_out = scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ v
    torch.testing.assert_close(blocks.normalise_parts(halves), expected_out)


@pytest.mark.parametrize("block", [1, 5, 8, 37])
def test_local_contiguous_matches_reference(block):
    check_pairs(sized(Local, block=block), lambda at: sparse_reference.local(at, block))


@pytest.mark.parametrize(("block", "stride"), [(5, 10), (8, 7), (7, 7), (12, 5)])
def test_local_strided_matches_released_grouping(block, stride):
    """Length 48 is padded to 50, 56, 49 and 60: a block that divides 48, 8 or 12, adds a whole block as released."""
    check_pairs(sized(Local, block=block, grouping="strided"), lambda at: sparse_reference.column(at, stride))


@pytest.mark.parametrize("stride", [1, 4, 7, None])
@pytest.mark.parametrize("causal", [False, True])
def test_sparse_strided_matches_reference(stride, causal):
    # The default is the rounded √48.
    sees = lambda at: sparse_reference.strided(at, stride or 7, causal=causal)
    check_pairs(sized(Sparse, stride=stride, causal=causal), sees)


@pytest.mark.parametrize(("block", "summary"), [(5, 1), (6, 2), (8, 8), (50, 10)])
@pytest.mark.parametrize("causal", [False, True])
def test_sparse_fixed_matches_reference(block, summary, causal):
    sees = lambda at: sparse_reference.fixed(at, block, summary, causal=causal)
    check_pairs(sized(Sparse, pattern="fixed", block=block, summary=summary, causal=causal), sees)


@pytest.mark.parametrize("value_dim", [E, D], ids=["written out", "fused"])
@pytest.mark.parametrize("window", [1, 2, 5, 12, 64])
@pytest.mark.parametrize("global_tokens", [0, 1, 3, 40])
def test_longformer_matches_reference(window, global_tokens, value_dim):
    """Values as wide as keys take torch's fused kernel, with the mask as a column of the keys (``hide_keys``)."""
    sees = lambda at: sparse_reference.longformer(at, window, global_tokens)
    check_pairs(sized(Longformer, window=window, global_tokens=global_tokens), sees, value_dim)


@pytest.mark.parametrize(("block", "window", "random"), [(4, 3, 3), (4, 1, 2), (3, 5, 0), (10, 3, 3), (64, 3, 3)])
def test_bigbird_matches_reference(block, window, random):
    layer = sized(BigBird, block=block, window=window, random=random)

    def oracle(h, at, q, k, v):
        sees = sparse_reference.bigbird(at, block, window, random, layer.draw[h])
        return sparse_reference.attention(q, k, v, sees)

    check(layer, oracle, L)


@pytest.mark.parametrize(
    "iterations, temperature, block", [(0, 1, 4), (0, 0.5, 4), (1, 1, 4), (8, 0.75, 4), (2, 1, 16)]
)
def test_sinkhorn_matches_reference(iterations, temperature, block):
    options = {"iterations": iterations, "temperature": temperature}
    layer = sized(Sinkhorn, length=16, block=block, **options)

    def oracle(h, at, q, k, v):
        return sinkhorn_reference.attention(q, k, v, at, block, layer.weight[h], layer.bias[h, 0], **options)

    check(layer, oracle, 14)


def check_reformer(chunk, buckets=None, hashes=2, **options):
    layer = sized(Reformer, chunk=chunk, buckets=buckets, hashes=hashes, **options)

    def oracle(h, at, q, k, v):
        return reformer_reference.attention(q, v, layer.rotations[h], layer.chunk, **options)

    check(layer, oracle, L, shared=True)


@pytest.mark.parametrize("scope", ["chunk", "bucket"])
@pytest.mark.parametrize("hashes", [1, 2, 4])
@pytest.mark.parametrize(("chunk", "buckets"), [(4, None), (5, 6), (16, 2), (3, 16), (48, 1), (None, 1)])
def test_reformer_matches_reference(scope, hashes, chunk, buckets):
    check_reformer(chunk, buckets, hashes, scope=scope)


@pytest.mark.parametrize("power", [0, 0.5])
@pytest.mark.parametrize("unit_keys", [True, False])
@pytest.mark.parametrize("own_last", [True, False])
def test_reformer_score_options_match_reference(power, unit_keys, own_last):
    check_reformer(6, power=power, unit_keys=unit_keys, own_last=own_last)


def test_defaults_follow_length_and_other_options():
    """The stride is √length, rounded; chunk and buckets default to each other."""
    assert [sized(Sparse, length=n).stride for n in (128, 1024, 2048, 4096)] == [11, 32, 45, 64]
    layer = sized(Reformer, length=2048)
    # The mean bucket holds half a chunk.
    assert (layer.chunk, layer.buckets) == (64, 64)
    layer = sized(Reformer, length=2048, chunk=None, buckets=10)
    assert (layer.chunk, layer.buckets) == (205, 10)


@pytest.mark.parametrize("options", [{"width": 1}, {"width": 5}, {"width": 61}, {"width": 4, "causal": True}])
def test_conv_matches_reference(options):
    torch.manual_seed(0)
    model = Conv(TOKEN_SIZES, dim=3, **options).double()
    x = torch.randn(2, CONV_LENGTH, 3, dtype=torch.float64)
    mask = torch.stack([torch.arange(CONV_LENGTH) < 66, torch.rand(CONV_LENGTH) < 0.5])
    mask[1, 0] = True
    values = model.values(x)
    for real in (mask, mask | True):
        for n in range(2):
            at = real[n].nonzero()[:, 0]
            mixed = convolution_reference.short_convolution(values[n, at], at, model.filters, causal=model.causal)
            actual = model(x, None if real.all() else real)[n, at]
            torch.testing.assert_close(actual, model.output(mixed), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_long_conv_matches_reference(causal):
    torch.manual_seed(0)
    model = LongConv(TOKEN_SIZES, dim=3, bidirectional=not causal, squash=0.3, scale=1.0).double()
    x, mask = tokens(3), masks()["holes"]
    filters = [convolution_reference.squash(weights, 0.3) for weights in model.weights]
    for n in range(3):
        at = mask[n].nonzero()[:, 0]
        expected = convolution_reference.long_convolution(x[n, at], at, *filters) + model.skip * x[n, at]
        torch.testing.assert_close(model(x, mask)[n, at], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("order", [2, 3])
def test_hyena_matches_reference(causal, order):
    torch.manual_seed(0)
    window = {"features": 5, "shift": 0.1}
    model = Hyena(TOKEN_SIZES, dim=3, causal=causal, order=order, hidden=8, **window).double()
    x, mask = tokens(3), masks()["holes"]
    # Filters of all lags over earlier tokens, then over later ones. Those of one channel lie side by side.
    filters = []
    for net in model.filters:
        sizes = mask.shape[1], TOKEN_SIZES.length
        h = convolution_reference.hyena_filter(*sizes, net.layers, net.last, net.frequency, net.decay, **window)
        filters.append(h.unflatten(0, (-1, order - 1)).unbind(1))
    for n in range(3):
        at = mask[n].nonzero()[:, 0]
        *gates, v = model.conv(model.inputs(x), mask)[n, at].chunk(order + 1, 1)
        directions = [dict(zip(("behind", "ahead"), kernels, strict=False)) for kernels in zip(*filters, strict=True)]
        convolutions = [partial(convolution_reference.long_convolution, positions=at, **h) for h in directions]
        expected = model.output(convolution_reference.hyena(gates, v, convolutions, model.D))
        torch.testing.assert_close(model(x, mask)[n, at], expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("heads, kernel", [(1, 1), (1, 35), (2, 3), (2, 35), (3, 65), (2, 201)])
@pytest.mark.parametrize("L", [1, 12, 20, 46, 64, 65, 256])
def test_convolve_sequence_matches_banded_matrix(heads, kernel, L):
    """Includes lengths at which the gradient of torch's convolution is wrong on a CPU (``convolve_sequence``)."""
    torch.manual_seed(0)
    filters, v = torch.randn(heads, 1, kernel, 1).double(), torch.randn(2, heads, L, 5).double()
    tap = torch.arange(L) - torch.arange(L)[:, None] + kernel // 2
    inside = (tap >= 0) & (tap < kernel)
    band = filters.requires_grad_()[:, 0, :, 0][:, tap.clamp(0, kernel - 1)] * inside  # (H,L,L)
    same_with_gradients(convolve_sequence(v.requires_grad_(), filters), band @ v, (v, filters))
