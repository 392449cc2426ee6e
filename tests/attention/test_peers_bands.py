"""Banded, blocked, LSH and random-feature attention against public implementations."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from support.peers import DIM, SIZES, D, H, N, first_real, merge, package, same, same_with_gradients, split, tokens

from lra.attention.base import Sizes
from lra.attention.bigbird import BigBird
from lra.attention.linear import Performer
from lra.attention.local import Local
from lra.attention.longformer import Longformer
from lra.attention.reformer import Reformer

pytestmark = pytest.mark.peers


@pytest.mark.parametrize("global_tokens", [0, 1, 5])
@pytest.mark.parametrize("side", [2, 4, 16])
def test_longformer_is_that_of_transformers(side, global_tokens, monkeypatch):
    """Its weights pass through float32, which the test leaves out. Its global tokens have projections of their own, as
    in the paper; here they get those of the others, which Longformer shares."""
    package("transformers")
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    softmax = F.softmax
    monkeypatch.setattr(F, "softmax", lambda x, dim, dtype=None: softmax(x, dim))
    torch.manual_seed(0)
    config = LongformerConfig(
        hidden_size=DIM, num_attention_heads=H, attention_window=[2 * side], attention_probs_dropout_prob=0.0
    )
    peer, length = LongformerSelfAttention(config, 0).double(), 64
    for name in ("query", "key", "value"):
        getattr(peer, f"{name}_global").load_state_dict(getattr(peer, name).state_dict())
    ours = Longformer(Sizes(**SIZES, length=length), window=2 * side + 1, global_tokens=global_tokens)
    x, mask = tokens(length), first_real(length, length, 41, max(global_tokens, 3))
    everywhere = torch.arange(length).expand(N, -1) < global_tokens
    theirs = peer(
        x,
        attention_mask=torch.zeros(N, length).masked_fill(~mask, -10000).masked_fill(everywhere, 10000),
        is_index_masked=~mask,
        is_index_global_attn=everywhere,
        is_global_attn=global_tokens > 0,
    )[0]
    out = merge(ours(*split(peer.query(x), peer.key(x), peer.value(x)), mask))
    same_with_gradients(out[mask], theirs[mask], x)


@pytest.mark.parametrize("side", [1, 4, 16])
@pytest.mark.parametrize("masked", [False, True])
def test_longformer_is_that_of_local_attention_with_an_exact_window(side, masked):
    peers = package("local_attention")
    length = 64
    peer = peers.LocalAttention(side, look_backward=1, look_forward=1, exact_windowsize=True)
    ours = Longformer(Sizes(**SIZES, length=length), window=2 * side + 1)
    x = tokens(length)
    mask = first_real(length, length, 41, 3) if masked else first_real(length, length, length, length)
    q, k, v = split(x, 2 * x.flip(1), x.cos())
    theirs = peer(q, k, v, mask=mask if masked else None)
    out = ours(q, k, v, mask if masked else None)
    same_with_gradients(merge(out)[mask], merge(theirs)[mask], x)


@pytest.mark.parametrize("block, length", [(4, 64), (5, 40), (64, 64), (7, 40)])
def test_local_is_that_of_local_attention_looking_nowhere_else(block, length):
    """If blocks do not divide the row (7, 40) the package fills it up with zeros that are real unless a mask is
    given."""
    peers = package("local_attention")
    peer = peers.LocalAttention(block, look_backward=0, look_forward=0, autopad=True)
    ours, x = Local(Sizes(**SIZES, length=length), block=block), tokens(length)
    q, k, v = split(x, 2 * x.flip(1), x.cos())
    for mask in (first_real(length, length, length, length), first_real(length, length, length - 9, 3)):
        theirs = peer(q, k, v, mask=mask)
        same_with_gradients(merge(ours(q, k, v, mask))[mask], merge(theirs)[mask], x)
    last = length - length % block
    unmasked, full = peer(q, k, v), ours(q, k, v)
    torch.testing.assert_close(unmasked[:, :, :last], full[:, :, :last], rtol=1e-11, atol=1e-12)
    assert (last == length) == torch.allclose(unmasked, full)


def bigbird(blocks, block, random):
    """Ours with the random blocks that transformers draws while training, and transformers'."""
    package("transformers")
    from transformers import BigBirdConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

    torch.manual_seed(0)
    config = BigBirdConfig(
        hidden_size=DIM, num_attention_heads=H, block_size=block, num_random_blocks=random, use_bias=True
    )
    peer = BigBirdBlockSparseAttention(config, seed=3).double()
    ours = BigBird(Sizes(**SIZES, length=blocks * block), block=block, random=random).eval()
    drawn, draw = [], peer._bigbird_block_rand_mask_with_head
    peer._bigbird_block_rand_mask_with_head = lambda *a, **k: drawn.append(draw(*a, **k)) or drawn[-1]
    return ours, peer, drawn


def both(ours, peer, drawn, x, mask):
    from transformers.models.big_bird.modeling_big_bird import BigBirdModel

    blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(mask.double(), ours.block)
    theirs = peer(x, band, rows, columns, blocked, blocked)[0]
    ours.draw.zero_()
    for head, choice in enumerate(drawn[-1]):
        inner = torch.arange(1, len(choice) + 1)[:, None]
        ours.draw[head, inner, torch.as_tensor(choice, dtype=torch.int64)] = 1
    return merge(ours(*split(peer.query(x), peer.key(x), peer.value(x)), mask)), theirs


@pytest.mark.parametrize("blocks, block, random", [(12, 4, 3), (25, 2, 10), (8, 3, 1)])
def test_bigbird_is_that_of_transformers_while_training(blocks, block, random):
    """With the blocks that it drew, and where the last block has a real token. Otherwise its last block, which every
    token sees, is padding; ours is the last one with a real token."""
    ours, peer, drawn = bigbird(blocks, block, random)
    length = blocks * block
    x, mask = tokens(length), first_real(length, length, length - 1, length - block + 1)
    out, theirs = both(ours, peer.train(), drawn, x, mask)
    assert drawn[-1][0].shape == (blocks - 2, random)
    same_with_gradients(out[mask], theirs[mask], x)


def test_bigbird_of_transformers_has_no_random_blocks_in_evaluation():
    """All of them are block 0, which so counts 1 + random times; ours keeps one draw."""
    ours, peer, drawn = bigbird(12, 4, 3)
    x, mask = tokens(48), first_real(48, 48, 48, 48)
    out, theirs = both(ours, peer.eval(), drawn, x, mask)
    assert not any(choice.any() for choice in drawn[-1])
    torch.testing.assert_close(
        out[:, :4], theirs[:, :4], rtol=1e-11, atol=1e-12
    )  # a global block sees every token once
    q, k, v = split(peer.query(x), peer.key(x), peer.value(x))
    block = torch.arange(48) // 4
    times = ((block[:, None] - block).abs() <= 1) | (block == 11) | (block[:, None] == 0) | (block[:, None] == 11)
    times = torch.where((block == 0) & (block[:, None] > 0) & (block[:, None] < 11), 4.0, times.double())
    want = F.scaled_dot_product_attention(q, k, v, times.double().log())
    torch.testing.assert_close(theirs, merge(want), rtol=1e-11, atol=1e-12)
    assert (out[:, 8:-8] - theirs[:, 8:-8]).abs().max() > 0.01


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
