"""Banded, block, LSH and random-feature attention against public implementations, in float64."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from support.peers import (
    DIM,
    D,
    H,
    L,
    N,
    derived_qkv,
    first_real,
    make,
    merge,
    package,
    run,
    same,
    same_with_gradients,
    split,
    tokens,
)

from lra.attention.bigbird import BigBird
from lra.attention.linear import Performer
from lra.attention.local import Local
from lra.attention.longformer import Longformer
from lra.attention.reformer import Reformer

pytestmark = pytest.mark.peers


@pytest.mark.parametrize("global_tokens", [0, 1, 5])
@pytest.mark.parametrize("side", [2, 4, 16])
def test_longformer_matches_transformers(side, global_tokens, monkeypatch):
    """transformers casts weights to float32, which is patched out; its global projections copy the local ones."""
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
    x, mask = tokens(length), first_real(length, length, 41, max(global_tokens, 3))
    is_global = torch.arange(length).expand(N, -1) < global_tokens
    theirs = peer(
        x,
        attention_mask=torch.zeros(N, length).masked_fill(~mask, -10000).masked_fill(is_global, 10000),
        is_index_masked=~mask,
        is_index_global_attn=is_global,
        is_global_attn=global_tokens > 0,
    )[0]
    ours = make(Longformer, length, window=2 * side + 1, global_tokens=global_tokens)
    same_with_gradients(run(ours, peer, x, mask)[mask], theirs[mask], x)


@pytest.mark.parametrize("side", [1, 4, 16])
@pytest.mark.parametrize("masked", [False, True])
def test_longformer_matches_local_attention_with_exact_window(side, masked):
    peers = package("local_attention")
    length = 64
    peer = peers.LocalAttention(side, look_backward=1, look_forward=1, exact_windowsize=True)
    x = tokens(length)
    real = first_real(length, length, 41, 3) if masked else first_real(length, length, length, length)
    mask = real if masked else None
    out = make(Longformer, length, window=2 * side + 1)(*derived_qkv(x), mask)
    theirs = peer(*derived_qkv(x), mask=mask)
    same_with_gradients(merge(out)[real], merge(theirs)[real], x)


@pytest.mark.parametrize("block, length", [(4, 64), (5, 40), (64, 64), (7, 40)])
def test_local_matches_local_attention_without_neighbours(block, length):
    """Without a mask the package attends to the zeros that fill the last block, as for (7, 40)."""
    peers = package("local_attention")
    peer = peers.LocalAttention(block, look_backward=0, look_forward=0, autopad=True)
    ours, x = make(Local, length, block=block), tokens(length)
    q, k, v = derived_qkv(x)
    for mask in (first_real(length, length, length, length), first_real(length, length, length - 9, 3)):
        same_with_gradients(merge(ours(q, k, v, mask))[mask], merge(peer(q, k, v, mask=mask))[mask], x)
    num_full = length - length % block
    unmasked, full = peer(q, k, v), ours(q, k, v)
    same(unmasked[:, :, :num_full], full[:, :, :num_full])
    assert (num_full == length) == torch.allclose(unmasked, full)


def build_bigbirds(blocks, block, random):
    """Return our module, the module of transformers, and a list that collects the random blocks it draws."""
    package("transformers")
    from transformers import BigBirdConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

    torch.manual_seed(0)
    config = BigBirdConfig(
        hidden_size=DIM, num_attention_heads=H, block_size=block, num_random_blocks=random, use_bias=True
    )
    peer = BigBirdBlockSparseAttention(config, seed=3).double()
    draws, draw = [], peer._bigbird_block_rand_mask_with_head
    peer._bigbird_block_rand_mask_with_head = lambda *a, **k: draws.append(draw(*a, **k)) or draws[-1]
    return make(BigBird, blocks * block, block=block, random=random), peer, draws


def run_both(ours, peer, draws, x, mask):
    """Run both modules with the same random blocks."""
    from transformers.models.big_bird.modeling_big_bird import BigBirdModel

    blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(mask.double(), ours.block)
    theirs = peer(x, band, rows, columns, blocked, blocked)[0]
    ours.draw.zero_()
    for head, choice in enumerate(draws[-1]):
        inner = torch.arange(1, len(choice) + 1)[:, None]
        ours.draw[head, inner, torch.as_tensor(choice, dtype=torch.int64)] = 1
    return run(ours, peer, x, mask), theirs


@pytest.mark.parametrize("blocks, block, random", [(12, 4, 3), (25, 2, 10), (8, 3, 1)])
def test_bigbird_matches_transformers_in_training(blocks, block, random):
    """The last block has a real token, because in transformers every token attends to it even if it is padding."""
    ours, peer, draws = build_bigbirds(blocks, block, random)
    length = blocks * block
    x, mask = tokens(length), first_real(length, length, length - 1, length - block + 1)
    out, theirs = run_both(ours, peer.train(), draws, x, mask)
    assert draws[-1][0].shape == (blocks - 2, random)
    same_with_gradients(out[mask], theirs[mask], x)


def test_transformers_bigbird_has_no_random_blocks_in_evaluation():
    """There every random block is block 0, which counts 1 + random times; our module uses one fixed draw."""
    ours, peer, draws = build_bigbirds(12, 4, 3)
    x, mask = tokens(48), first_real(48, 48, 48, 48)
    out, theirs = run_both(ours, peer.eval(), draws, x, mask)
    assert not any(choice.any() for choice in draws[-1])
    # A global block sees every token once.
    same(out[:, :4], theirs[:, :4])
    block = torch.arange(48) // 4
    is_end = (block == 0) | (block == 11)
    counts = ((block[:, None] - block).abs() <= 1) | is_end | is_end[:, None]
    counts = torch.where((block == 0) & ~is_end[:, None], 4.0, counts.double())
    expected = F.scaled_dot_product_attention(*split(peer.query(x), peer.key(x), peer.value(x)), counts.double().log())
    same(theirs, merge(expected))
    assert (out[:, 8:-8] - theirs[:, 8:-8]).abs().max() > 0.01


def build_performers(kernel, **options):
    peers = package("performer_pytorch.performer_pytorch")
    torch.manual_seed(0)
    peer = peers.FastAttention(D, nb_features=20, generalized_attention=kernel == "relu").double()
    ours = make(Performer, features=20, kernel=kernel, redraw="never", **options)
    ours.rows.draw.copy_(peer.projection_matrix)
    return ours, peer, peers


@pytest.mark.parametrize("spread, scalings", [(0.3, 1), (1.0, 1), (3.0, 1), (1.0, 2)])
def test_performer_matches_performer_pytorch(spread, scalings):
    """Without padding. scalings=2 is the package on scaled queries and keys, as the PyTorch LRA code calls it."""
    ours, peer, _ = build_performers("exp", scalings=scalings)
    q, k, v = derived_qkv(spread * tokens().detach())
    scale = D ** (-0.25 * (scalings - 1))
    same(ours(q, k, v), peer(q * scale, k * scale, v))


def test_performer_gradient_without_eps_matches_performer_pytorch():
    """With eps the result depends on the stabilisers, whose gradient the package detaches."""
    ours, peer, peers = build_performers("exp", eps=0.0)
    x = tokens()
    q, k, v = derived_qkv(x)
    features = partial(peers.softmax_kernel, projection_matrix=peer.projection_matrix, eps=0.0)
    theirs = peers.linear_attention(features(q, is_query=True), features(k, is_query=False), v)
    same_with_gradients(ours(q, k, v), theirs, x)


def test_performer_relu_matches_performer_pytorch():
    ours, peer, _ = build_performers("relu")
    x = tokens()
    same_with_gradients(ours(*derived_qkv(x)), peer(*derived_qkv(x)), x)


def build_reformers(chunk, hashes, buckets):
    package("transformers")
    from transformers import ReformerConfig
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    torch.manual_seed(0)
    sizes = {"hidden_size": DIM, "num_attention_heads": H, "attention_head_size": D, "num_buckets": buckets}
    sizes |= {"lsh_attn_chunk_length": chunk, "num_hashes": hashes, "lsh_attention_probs_dropout_prob": 0.0}
    peer = LSHSelfAttention(ReformerConfig(**sizes, hash_seed=5, is_decoder=False)).double()
    # Remove the 1e-6 that transformers adds to |x|².
    peer._len_norm = partial(peer._len_norm, epsilon=0.0)
    ours = make(Reformer, hashes=hashes, chunk=chunk, buckets=buckets, power=0)
    torch.manual_seed(5)
    ours.rotations.copy_(torch.randn(H, D, hashes, buckets // 2, dtype=torch.float64).transpose(1, 2))
    return ours, peer


def in_first_chunk(ours, x, mask):
    """Mask (N,H,L) of the tokens in the first chunk of any hashing round; padding is sorted to the end."""
    bucket = ours.hash(x).masked_fill(~mask[:, None, None], ours.buckets)
    rank = bucket.argsort(dim=-1, stable=True).argsort(-1)
    return (rank < ours.chunk).any(2)


@pytest.mark.parametrize("chunk, hashes, buckets", [(8, 1, 6), (8, 2, 12), (16, 1, 2), (12, 3, 8)])
@pytest.mark.parametrize("masked", [False, True])
def test_reformer_matches_transformers_after_first_chunk(chunk, hashes, buckets, masked):
    """In transformers the first chunk sees the last chunk of the previous round; in the paper it sees itself only."""
    ours, peer = build_reformers(chunk, hashes, buckets)
    x = tokens()
    real = first_real(L, L, 37, 20) if masked else first_real(L, L, L, L)
    mask = real if masked else None
    qk, v = split(peer.query_key(x), peer.value(x))
    theirs = split(peer(x, attention_mask=mask).hidden_states)[0]
    out = ours(qk, qk, v, mask)
    is_first, real = in_first_chunk(ours, qk, real), real[:, None].expand(-1, H, -1)
    assert (real & ~is_first).sum() > 50
    same_with_gradients(out[real & ~is_first], theirs[real & ~is_first], x)
    assert not torch.allclose(out[real & is_first], theirs[real & is_first], atol=1e-3)


def test_reformer_with_one_chunk_matches_transformers():
    ours, peer = build_reformers(L, 1, 2)
    x, mask = tokens(), first_real(L, L, 37, 20)
    qk, v = split(peer.query_key(x), peer.value(x))
    theirs = peer(x, attention_mask=mask).hidden_states
    same_with_gradients(merge(ours(qk, qk, v, mask))[mask], theirs[mask], x)


SIZES = [(4, 1, "chunk"), (6, 2, "chunk"), (8, 3, "chunk"), (24, 1, "chunk")]
SIZES += [(4, 1, "bucket"), (6, 2, "bucket"), (8, 3, "bucket"), (4, 4, "bucket")]


@pytest.mark.parametrize("chunk, hashes, scope", SIZES)
def test_reformer_matches_reformer_pytorch(chunk, hashes, scope):
    """scope=bucket matches up to the 1e-9 that the package adds; scope=chunk after the first chunk, as above."""
    peers = package("reformer_pytorch.reformer_pytorch")
    crosses_buckets = scope == "chunk"
    rules = {"attend_across_buckets": crosses_buckets, "allow_duplicate_attention": crosses_buckets}
    peer = peers.LSHAttention(bucket_size=chunk, n_hashes=hashes, **rules).eval()
    ours = make(Reformer, hashes=hashes, chunk=chunk, buckets=L // chunk, scope=scope)
    torch.manual_seed(5)
    ours.rotations.copy_(torch.randn(1, D, hashes, L // chunk // 2, dtype=torch.float64).transpose(1, 2))
    x = tokens()
    qk, v = split(x, x.cos())
    torch.manual_seed(5)
    theirs = peer(qk.flatten(0, 1), v.flatten(0, 1))[0].unflatten(0, (N, H))
    out = ours(qk, qk, v)
    if not crosses_buckets:
        same_with_gradients(out, theirs, x, rtol=1e-8, atol=1e-8)
        return
    is_first = in_first_chunk(ours, qk, first_real(L, L, L, L))
    same_with_gradients(out[~is_first], theirs[~is_first], x)
    assert not torch.allclose(out[is_first], theirs[is_first], atol=1e-3)
