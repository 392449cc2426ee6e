"""Performer against performer-pytorch, LSH attention against transformers' Reformer and reformer-pytorch."""

from functools import partial

import pytest
import torch
from support.peers import DIM, SIZES, D, H, N, first_real, merge, package, same, same_with_gradients, split, tokens

from lra.attention.base import Sizes
from lra.attention.linear import Performer
from lra.attention.reformer import Reformer

pytestmark = pytest.mark.peers

L = 48


def performers(kernel, **options):
    peers = package("performer_pytorch.performer_pytorch")
    torch.manual_seed(0)
    peer = peers.FastAttention(D, nb_features=20, generalized_attention=kernel == "relu").double()
    ours = Performer(Sizes(**SIZES, length=L), features=20, kernel=kernel, redraw="never", **options).double()
    ours.rows.draw.copy_(peer.projection_matrix)
    return ours, peer, peers


@pytest.mark.parametrize("spread, scalings", [(0.3, 1), (1.0, 1), (3.0, 1), (1.0, 2)])
def test_performer_is_that_of_performer_pytorch(spread, scalings):
    """Without padding, for which the package has no argument, and up to the sign of its rows: its QR decomposition
    keeps torch's signs, so that they are not uniform over rotations. Scaling twice is the package handed scaled queries
    and keys, as the PyTorch LRA code calls it."""
    ours, peer, _ = performers("exp", scalings=scalings)
    x = spread * tokens(L).detach()
    q, k, v = split(x, 2 * x.flip(1), x.cos())
    scale = D ** (-0.25 * (scalings - 1))
    same(ours(q, k, v), peer(q * scale, k * scale, v))


def test_performer_without_eps_has_the_gradient_of_performer_pytorch():
    """With eps the stabilisers take part in the gradient, and the package cuts it off there."""
    ours, peer, peers = performers("exp", eps=0.0)
    x = tokens(L)
    q, k, v = split(x, 2 * x.flip(1), x.cos())
    features = partial(peers.softmax_kernel, projection_matrix=peer.projection_matrix, eps=0.0)
    theirs = peers.linear_attention(features(q, is_query=True), features(k, is_query=False), v)
    same_with_gradients(ours(q, k, v), theirs, x)


def test_performer_with_relu_features_is_that_of_performer_pytorch():
    ours, peer, _ = performers("relu")
    x = tokens(L)
    q, k, v = split(x, 2 * x.flip(1), x.cos())
    same_with_gradients(ours(q, k, v), peer(q, k, v), x)


def transformers_reformer(chunk, hashes, buckets):
    package("transformers")
    from transformers import ReformerConfig
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    torch.manual_seed(0)
    config = ReformerConfig(
        hidden_size=DIM,
        num_attention_heads=H,
        attention_head_size=D,
        lsh_attn_chunk_length=chunk,
        num_hashes=hashes,
        num_buckets=buckets,
        hash_seed=5,
        is_decoder=False,
        lsh_attention_probs_dropout_prob=0.0,
    )
    peer = LSHSelfAttention(config).double()
    peer._len_norm = partial(peer._len_norm, epsilon=0.0)
    ours = Reformer(Sizes(**SIZES, length=L), hashes=hashes, chunk=chunk, buckets=buckets, power=0).double().eval()
    torch.manual_seed(5)
    ours.rotations.copy_(torch.randn(H, D, hashes, buckets // 2, dtype=torch.float64).transpose(1, 2))
    return ours, peer


def in_first_chunk(ours, x, mask):
    """Mask of the real tokens in the first chunk of some round, (N,H,L)."""
    bucket = ours.hash(x).masked_fill(~mask[:, None, None], ours.buckets)
    place = bucket.argsort(dim=-1, stable=True).argsort(-1)
    return (place < ours.chunk).any(2)


@pytest.mark.parametrize("chunk, hashes, buckets", [(8, 1, 6), (8, 2, 12), (16, 1, 2), (12, 3, 8)])
@pytest.mark.parametrize("masked", [False, True])
def test_reformer_is_that_of_transformers_behind_the_first_chunk(chunk, hashes, buckets, masked):
    """With power=0, and without the 1e-6 that it adds to |x|². Its first chunk sees the last one of the round before
    (the paper's has none before it), which holds the padding, so that the padding of an example moves its results."""
    ours, peer = transformers_reformer(chunk, hashes, buckets)
    x = tokens(L)
    mask = first_real(L, L, 37, 20) if masked else first_real(L, L, L, L)
    qk, v = split(peer.query_key(x), peer.value(x))
    theirs = split(peer(x, attention_mask=mask if masked else None).hidden_states)[0]
    out = ours(qk, qk, v, mask if masked else None)
    first, real = in_first_chunk(ours, qk, mask), mask[:, None].expand(-1, H, -1)
    assert (real & ~first).sum() > 50
    same_with_gradients(out[real & ~first], theirs[real & ~first], x)
    assert not torch.allclose(out[real & first], theirs[real & first], atol=1e-3)


def test_reformer_of_one_chunk_is_that_of_transformers():
    ours, peer = transformers_reformer(L, 1, 2)
    x, mask = tokens(L), first_real(L, L, 37, 20)
    qk, v = split(peer.query_key(x), peer.value(x))
    theirs = peer(x, attention_mask=mask).hidden_states
    same_with_gradients(merge(ours(qk, qk, v, mask))[mask], theirs[mask], x)


def lsh(chunk, hashes, scope):
    peers = package("reformer_pytorch.reformer_pytorch")
    paper = scope == "bucket"
    peer = peers.LSHAttention(
        bucket_size=chunk, n_hashes=hashes, attend_across_buckets=not paper, allow_duplicate_attention=not paper
    )
    ours = (
        Reformer(Sizes(**SIZES, length=L), hashes=hashes, chunk=chunk, buckets=L // chunk, scope=scope).double().eval()
    )
    torch.manual_seed(5)
    ours.rotations.copy_(torch.randn(1, D, hashes, L // chunk // 2, dtype=torch.float64).transpose(1, 2))
    x = tokens(L)
    qk, v = split(x, x.cos())
    torch.manual_seed(5)
    theirs = peer.eval()(qk.flatten(0, 1), v.flatten(0, 1))[0].unflatten(0, (N, H))
    return ours, x, qk, ours(qk, qk, v), theirs


@pytest.mark.parametrize("chunk, hashes", [(4, 1), (6, 2), (8, 3), (24, 1)])
def test_reformer_is_that_of_reformer_pytorch_behind_the_first_chunk(chunk, hashes):
    """Its first chunk sees the last one, as above. It sorts padding among the real tokens, so there is no mask here."""
    ours, x, qk, out, theirs = lsh(chunk, hashes, "chunk")
    first = in_first_chunk(ours, qk, first_real(L, L, L, L))
    same_with_gradients(out[~first], theirs[~first], x)
    assert not torch.allclose(out[first], theirs[first], atol=1e-3)


@pytest.mark.parametrize("chunk, hashes", [(4, 1), (6, 2), (8, 3), (4, 4)])
def test_reformer_within_buckets_is_that_of_reformer_pytorch(chunk, hashes):
    """The paper's rules on every row, the last chunk holding other buckets. The package adds 1e-9 to how often a key is
    met."""
    _, x, _, out, theirs = lsh(chunk, hashes, "bucket")
    same_with_gradients(out, theirs, x, rtol=1e-8, atol=1e-8)
