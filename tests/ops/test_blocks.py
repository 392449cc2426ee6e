"""Local, sparse, Longformer, BigBird, Sinkhorn and LSH attention, and convolutions, against dense definitions."""

import pytest
import torch
from support.features import TOKEN_SIZES, D, E, H, check, mean, qkv, same_with_gradients, sized, weights

from lra.attention.bigbird import BigBird
from lra.attention.conv import Conv
from lra.attention.local import Local
from lra.attention.longformer import Longformer
from lra.attention.reformer import Reformer
from lra.attention.sinkhorn import Sinkhorn
from lra.attention.sparse import Sparse
from lra.ops import blocks
from lra.ops.convolution import convolve_sequence

L = 37
# More positions than one block (64) of the product.
CONV_LENGTH = 70


def check_pairs(layer, sees, value_dim=E):
    """Compare with softmax attention to the real keys; sees(i, j) says whether query i may attend to key j."""
    pairs = torch.tensor([[sees(i, j) for j in range(L)] for i in range(L)])
    check(layer, lambda h, at, q, k, v: mean(weights(q, k) * pairs[at][:, at], v), L, value_dim=value_dim)


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
def test_local_contiguous_matches_definition(block):
    check_pairs(sized(Local, block=block), lambda i, j: i // block == j // block)


@pytest.mark.parametrize(("block", "stride"), [(5, 10), (8, 7), (7, 7), (12, 5)])
def test_local_strided_matches_released_grouping(block, stride):
    """Length 48 is padded to 50, 56, 49 and 60: a block that divides 48, 8 or 12, adds a whole block as released."""
    check_pairs(sized(Local, block=block, grouping="strided"), lambda i, j: i % stride == j % stride)


@pytest.mark.parametrize("stride", [1, 4, 7, None])
@pytest.mark.parametrize("causal", [False, True])
def test_sparse_strided_matches_definition(stride, causal):
    # The default is the rounded √48.
    l = stride or 7

    def sees(i, j):
        if causal:
            return j <= i and (i - j < l or (i - j) % l == 0)
        return i - (l - 1) // 2 <= j <= i + l // 2 or (i - j) % l == 0

    check_pairs(sized(Sparse, stride=stride, causal=causal), sees)


@pytest.mark.parametrize(("block", "summary"), [(5, 1), (6, 2), (8, 8), (50, 10)])
@pytest.mark.parametrize("causal", [False, True])
def test_sparse_fixed_matches_definition(block, summary, causal):
    def sees(i, j):
        in_pattern = i // block == j // block or j % block == 0 or j % block >= block - summary
        return in_pattern and (j <= i or not causal)

    check_pairs(sized(Sparse, pattern="fixed", block=block, summary=summary, causal=causal), sees)


@pytest.mark.parametrize("value_dim", [E, D], ids=["written out", "fused"])
@pytest.mark.parametrize("window", [1, 2, 5, 12, 64])
@pytest.mark.parametrize("global_tokens", [0, 1, 3, 40])
def test_longformer_matches_definition(window, global_tokens, value_dim):
    """Values as wide as keys take torch's fused kernel, with the mask as a column of the keys (``hide_keys``)."""
    sees = lambda i, j: i - (window - 1) // 2 <= j <= i + window // 2 or i < global_tokens or j < global_tokens
    check_pairs(sized(Longformer, window=window, global_tokens=global_tokens), sees, value_dim)


@pytest.mark.parametrize(("block", "window", "random"), [(4, 3, 3), (4, 1, 2), (3, 5, 0), (10, 3, 3), (64, 3, 3)])
def test_bigbird_matches_definition(block, window, random):
    layer = sized(BigBird, block=block, window=window, random=random)

    def oracle(h, at, q, k, v):
        # The last block with a real token.
        last, sees = int(at.max()) // block, torch.zeros(L, L, dtype=torch.bool)
        for i in range(last + 1):
            reachable = {j for j in range(i - window // 2, i + window // 2 + 1) if 0 <= j <= last} | {0, last}
            candidates = [j for j in range(last + 1) if j not in reachable]
            selected = reachable | set(sorted(candidates, key=lambda j: -layer.draw[h, i, j])[:random])
            for j in range(last + 1) if i in (0, last) else selected:
                sees[i * block : (i + 1) * block, j * block : (j + 1) * block] = True
        return mean(weights(q, k) * sees[at][:, at], v)

    check(layer, oracle, L)


def sinkhorn_reference(layer, h, at, q, k, v, iterations, temperature, block):
    # Only blocks with a real token take part.
    used_blocks, local = (at // block).unique(return_inverse=True)
    pooled = torch.stack([k[local == b].sum(0) for b in range(len(used_blocks))])
    sort = (pooled @ layer.weight[h, :, used_blocks] + layer.bias[h, 0, used_blocks]) / temperature
    sort = sort.exp() if iterations else sort.softmax(1)
    for _ in range(iterations):
        sort = sort / sort.sum(1, keepdim=True)
        sort = sort / sort.sum(0, keepdim=True)
    rows = []
    for i, a in enumerate(local.tolist()):
        keys, values = [k[local == a]], [v[local == a]]
        # A sorted key is the mixture of the keys at the same offset in all blocks.
        for offset in (at % block).unique():
            at_offset = at % block == offset
            weights = sort[a, local[at_offset]]
            keys.append((weights @ k[at_offset])[None])
            values.append((weights @ v[at_offset])[None])
        rows.append((torch.cat(keys) @ q[i] * D**-0.5).softmax(0) @ torch.cat(values))
    return torch.stack(rows)


@pytest.mark.parametrize(
    "iterations, temperature, block", [(0, 1, 4), (0, 0.5, 4), (1, 1, 4), (8, 0.75, 4), (2, 1, 16)]
)
def test_sinkhorn_matches_definition(iterations, temperature, block):
    layer = sized(Sinkhorn, length=16, block=block, iterations=iterations, temperature=temperature)
    check(layer, lambda *head: sinkhorn_reference(layer, *head, iterations, temperature, block), 14)


def visible_keys(x, rotations, layer, same_bucket):
    """Mask (n,n) of the real keys that each real token x (n,D) sees in one round; rotations (D, buckets / 2)."""
    projected = x @ rotations
    bucket = torch.cat([projected, -projected], -1).argmax(-1) if layer.buckets > 1 else torch.zeros(len(x))
    chunk = bucket.argsort(stable=True).argsort() // layer.chunk
    back = chunk[:, None] - chunk
    reachable = (back == 0) | (back == 1)
    return (reachable & (bucket[:, None] == bucket) if same_bucket else reachable).double()


def check_reformer(scope, power=-0.5, unit_keys=True, own_last=True, **options):
    layer = sized(Reformer, scope=scope, power=power, unit_keys=unit_keys, own_last=own_last, **options)

    def oracle(h, at, q, k, v):
        counts = sum(visible_keys(q.detach(), R, layer, scope == "bucket") for R in layer.rotations[h])
        # A key that is seen in several rounds counts once within buckets, else once per round.
        counts = counts.clamp(max=1) if scope == "bucket" else counts
        if own_last:
            sees_only_itself = counts.sum(-1) == counts.diagonal()
            counts = torch.where(torch.eye(len(q), dtype=torch.bool) & ~sees_only_itself[:, None], 0.0, counts)
        keys = q / q.norm(dim=-1, keepdim=True) if unit_keys else q
        return mean((q @ keys.T * D**power).exp() * counts, v)

    check(layer, oracle, L, shared=True)


@pytest.mark.parametrize("scope", ["chunk", "bucket"])
@pytest.mark.parametrize("hashes", [1, 2, 4])
@pytest.mark.parametrize(("chunk", "buckets"), [(4, None), (5, 6), (16, 2), (3, 16), (48, 1), (None, 1)])
def test_reformer_matches_definition(scope, hashes, chunk, buckets):
    check_reformer(scope, hashes=hashes, chunk=chunk, buckets=buckets)


@pytest.mark.parametrize("power", [0, 0.5])
@pytest.mark.parametrize("unit_keys", [True, False])
@pytest.mark.parametrize("own_last", [True, False])
def test_reformer_score_options_match_definition(power, unit_keys, own_last):
    check_reformer("chunk", power=power, unit_keys=unit_keys, own_last=own_last, chunk=6)


def test_defaults_follow_length_and_other_options():
    """The stride is √length, rounded; chunk and buckets default to each other."""
    assert [sized(Sparse, length=n).stride for n in (128, 1024, 2048, 4096)] == [11, 32, 45, 64]
    layer = sized(Reformer, length=2048)
    # The mean bucket holds half a chunk.
    assert (layer.chunk, layer.buckets) == (64, 64)
    layer = sized(Reformer, length=2048, chunk=None, buckets=10)
    assert (layer.chunk, layer.buckets) == (205, 10)


def conv_reference(model, x, mask):
    """A banded matrix over real neighbours. The token's tap is the middle one, or the last one if causal."""
    v = x @ model.values.weight.T + model.values.bias
    width = model.filters.shape[1]
    center = width - 1 if model.causal else width // 2
    tap = torch.arange(CONV_LENGTH) - torch.arange(CONV_LENGTH)[:, None] + center
    inside = (tap >= 0) & (tap < width) & mask[:, None, None]  # (N,1,L,L)
    band = model.filters[:, tap.clamp(0, width - 1)] * inside  # (N,d,L,L)
    out = (band @ v.mT[..., None])[..., 0] / band.abs().sum(-1).clamp(min=1e-300)  # (N,d,L)
    return out.mT @ model.output.weight.T + model.output.bias


@pytest.mark.parametrize("options", [{"width": 1}, {"width": 5}, {"width": 61}, {"width": 4, "causal": True}])
def test_conv_matches_sum_over_real_neighbours(options):
    torch.manual_seed(0)
    model = Conv(TOKEN_SIZES, dim=3, **options).double()
    x = torch.randn(2, CONV_LENGTH, 3, dtype=torch.float64)
    mask = torch.stack([torch.arange(CONV_LENGTH) < 66, torch.rand(CONV_LENGTH) < 0.5])
    mask[1, 0] = True
    torch.testing.assert_close(model(x, mask)[mask], conv_reference(model, x, mask)[mask], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(model(x), conv_reference(model, x, mask | True), rtol=1e-10, atol=1e-12)


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
