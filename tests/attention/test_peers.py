"""Mechanisms against public implementations with the same weights, in float64.

None of these packages is a dependency: `make test-peers` installs them, and a test whose package is absent is skipped.
Results agree up to rounding; the docstrings name the cases in which a package computes something else.
"""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from support import features

from lra.attention.base import Sizes
from lra.attention.bigbird import BigBird
from lra.attention.linear import Performer
from lra.attention.local import Local
from lra.attention.longformer import Longformer
from lra.attention.nystrom import Nystrom, NystromOriginal
from lra.attention.reformer import Reformer
from lra.ops.pinv import cubic

pytestmark = pytest.mark.peers
N, L, H, D = 3, 48, 2, 8
DIM = H * D


def package(name):
    return pytest.importorskip(name, reason=f"{name.split('.')[0]} is not installed: make test-peers")


def make(kind, length=L, **options):
    return kind(Sizes(heads=H, head_dim=D, value_dim=D, length=length), **options).double().eval()


def split(*projected):
    """Split heads: (N,L,H D) -> (N,H,L,D)."""
    return [t.unflatten(-1, (H, D)).transpose(1, 2) for t in projected]


def merge(mixed):
    return mixed.transpose(1, 2).flatten(2)


def run(ours, peer, x, mask=None):
    """Our attention applied to the projections of a peer implementation."""
    return merge(ours(*split(peer.query(x), peer.key(x), peer.value(x)), mask))


def same(ours, theirs, rtol=1e-11, atol=1e-12):
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)


def same_with_gradients(ours, theirs, x):
    features.same_with_gradients(ours, theirs, [x], rtol=1e-11, atol=1e-12)


def tokens(length=L):
    return torch.randn(N, length, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()


def derived_qkv(x):
    """Distinct queries, keys and values derived from x without projections."""
    return split(x, 2 * x.flip(1), x.cos())


def first_real(length, *real):
    return torch.arange(length) < torch.tensor(real)[:, None]


SUFFIX = first_real(L, L, 30, 5)
ADDITIVE_SUFFIX = torch.zeros(N, 1, 1, L, dtype=torch.float64).masked_fill(~SUFFIX[:, None, None], float("-inf"))
PINV = partial(cubic, steps=6, init="batch")


@pytest.mark.parametrize("landmarks", [1, 4, 16, L])
@pytest.mark.parametrize("kernel", [5, 35])
@pytest.mark.parametrize("masked", [False, True])
def test_nystrom_original_matches_transformers(landmarks, kernel, masked):
    """Padding without biases, so that its queries, keys and values are zero, as the LRA code sets them."""
    peers = package("transformers.models.nystromformer.modeling_nystromformer")
    torch.manual_seed(0)
    sizes = {"hidden_size": DIM, "num_attention_heads": H, "segment_means_seq_len": L}
    config = peers.NystromformerConfig(num_landmarks=landmarks, conv_kernel_size=kernel, **sizes)
    peer = peers.NystromformerSelfAttention(config).double().eval()
    ours = make(NystromOriginal, landmarks=landmarks, kernel=kernel, pinv=PINV)
    ours.conv.load_state_dict(peer.conv.state_dict())
    if not masked:
        same(run(ours, peer, tokens()), peer(tokens())[0])
        return
    for layer in (peer.query, peer.key, peer.value):
        torch.nn.init.zeros_(layer.bias)
    x = tokens() * SUFFIX[..., None]
    same(run(ours, peer, x, SUFFIX)[SUFFIX], peer(x, ADDITIVE_SUFFIX)[0][SUFFIX])


@pytest.mark.parametrize("landmarks", [1, 4, 16])
@pytest.mark.parametrize("kernel", [0, 33])
def test_nystrom_matches_nystrom_attention_package(landmarks, kernel):
    """Only without padding and with landmarks that divide the length: the package pads at the front."""
    peers = package("nystrom_attention.nystrom_attention")
    torch.manual_seed(0)
    sizes = {"dim_head": D, "heads": H, "num_landmarks": landmarks}
    peer = peers.NystromAttention(DIM, **sizes, residual=kernel > 0, residual_conv_kernel=kernel or 1).double().eval()
    ours, x = make(Nystrom, landmarks=landmarks, kernel=kernel, pinv=PINV), tokens()
    if kernel:
        ours.conv.load_state_dict(peer.res_conv.state_dict())
    same(peer.to_out(merge(ours(*split(*peer.to_qkv(x).chunk(3, -1))))), peer(x))


@pytest.mark.parametrize("global_tokens", [0, 1, 5])
@pytest.mark.parametrize("side", [2, 4, 16])
def test_longformer_matches_transformers(side, global_tokens, monkeypatch):
    """transformers casts weights to float32, which is patched out; its global projections copy the local ones."""
    peers = package("transformers.models.longformer.modeling_longformer")
    softmax = F.softmax
    monkeypatch.setattr(F, "softmax", lambda x, dim, dtype=None: softmax(x, dim))
    torch.manual_seed(0)
    options = {"attention_window": [2 * side], "attention_probs_dropout_prob": 0.0}
    config = peers.LongformerConfig(hidden_size=DIM, num_attention_heads=H, **options)
    peer, length = peers.LongformerSelfAttention(config, 0).double(), 64
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


@pytest.mark.parametrize("block, length", [(4, 64), (5, 40), (64, 64), (7, 40)])
def test_local_matches_local_attention_without_neighbours(block, length):
    """Without a mask the package attends to the zeros that fill the last block, as for (7, 40)."""
    peer = package("local_attention").LocalAttention(block, look_backward=0, look_forward=0, autopad=True)
    ours, x = make(Local, length, block=block), tokens(length)
    q, k, v = derived_qkv(x)
    for mask in (first_real(length, length, length, length), first_real(length, length, length - 9, 3)):
        same_with_gradients(merge(ours(q, k, v, mask))[mask], merge(peer(q, k, v, mask=mask))[mask], x)
    num_full = length - length % block
    unmasked, full = peer(q, k, v), ours(q, k, v)
    same(unmasked[:, :, :num_full], full[:, :, :num_full])
    assert (num_full == length) == torch.allclose(unmasked, full)


@pytest.mark.parametrize("blocks, block, random", [(12, 4, 3), (25, 2, 10), (8, 3, 1)])
def test_bigbird_matches_transformers_in_training(blocks, block, random):
    """The last block has a real token, because in transformers every token attends to it even if it is padding."""
    peers = package("transformers.models.big_bird.modeling_big_bird")
    torch.manual_seed(0)
    sizes = {"hidden_size": DIM, "num_attention_heads": H, "block_size": block, "num_random_blocks": random}
    peer = peers.BigBirdBlockSparseAttention(peers.BigBirdConfig(**sizes, use_bias=True), seed=3).double().train()
    # Collect the random blocks that transformers draws.
    draws, draw = [], peer._bigbird_block_rand_mask_with_head
    peer._bigbird_block_rand_mask_with_head = lambda *a, **k: draws.append(draw(*a, **k)) or draws[-1]
    length = blocks * block
    x, mask = tokens(length), first_real(length, length, length - 1, length - block + 1)
    blocked, band, rows, columns = peers.BigBirdModel.create_masks_for_block_sparse_attn(mask.double(), block)
    theirs = peer(x, band, rows, columns, blocked, blocked)[0]
    # Use the same random blocks.
    ours = make(BigBird, length, block=block, random=random)
    ours.draw.zero_()
    for head, choice in enumerate(draws[-1]):
        assert choice.shape == (blocks - 2, random)
        ours.draw[head, torch.arange(1, blocks - 1)[:, None], torch.as_tensor(choice, dtype=torch.int64)] = 1
    same_with_gradients(run(ours, peer, x, mask)[mask], theirs[mask], x)


PERFORMER = [("exp", 0.3, 1), ("exp", 1.0, 1), ("exp", 3.0, 1), ("exp", 1.0, 2), ("relu", 1.0, 1)]


@pytest.mark.parametrize("kernel, spread, scalings", PERFORMER)
def test_performer_matches_performer_pytorch(kernel, spread, scalings):
    """Without padding. scalings=2 is the package on scaled queries and keys, as Nystromformer's code calls it."""
    peers = package("performer_pytorch.performer_pytorch")
    torch.manual_seed(0)
    peer = peers.FastAttention(D, nb_features=20, generalized_attention=kernel == "relu").double()
    ours = make(Performer, features=20, kernel=kernel, redraw="never", scalings=scalings)
    ours.rows.draw.copy_(peer.projection_matrix)
    q, k, v = derived_qkv(spread * tokens().detach())
    scale = D ** (-0.25 * (scalings - 1))
    same(ours(q, k, v), peer(q * scale, k * scale, v))


def in_first_chunk(ours, x, mask):
    """Mask (N,H,L) of the tokens in the first chunk of any hashing round; padding is sorted to the end."""
    bucket = ours.hash(x).masked_fill(~mask[:, None, None], ours.buckets)
    return (bucket.argsort(dim=-1, stable=True).argsort(-1) < ours.chunk).any(2)


@pytest.mark.parametrize("chunk, hashes, buckets", [(8, 1, 6), (8, 2, 12), (16, 1, 2), (12, 3, 8)])
@pytest.mark.parametrize("masked", [False, True])
def test_reformer_matches_transformers_after_first_chunk(chunk, hashes, buckets, masked):
    """In transformers the first chunk sees the last chunk of the previous round; in the paper it sees itself only."""
    peers = package("transformers.models.reformer.modeling_reformer")
    torch.manual_seed(0)
    sizes = {"hidden_size": DIM, "num_attention_heads": H, "attention_head_size": D, "num_buckets": buckets}
    sizes |= {"lsh_attn_chunk_length": chunk, "num_hashes": hashes, "lsh_attention_probs_dropout_prob": 0.0}
    peer = peers.LSHSelfAttention(peers.ReformerConfig(**sizes, hash_seed=5, is_decoder=False)).double()
    # Remove the 1e-6 that transformers adds to |x|².
    peer._len_norm = partial(peer._len_norm, epsilon=0.0)
    ours = make(Reformer, hashes=hashes, chunk=chunk, buckets=buckets, power=0)
    torch.manual_seed(5)
    ours.rotations.copy_(torch.randn(H, D, hashes, buckets // 2, dtype=torch.float64).transpose(1, 2))
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


@pytest.mark.parametrize("chunk, hashes", [(4, 1), (6, 2), (8, 3), (24, 1)])
def test_reformer_matches_reformer_pytorch_after_first_chunk(chunk, hashes):
    peer = package("reformer_pytorch.reformer_pytorch").LSHAttention(bucket_size=chunk, n_hashes=hashes).eval()
    ours = make(Reformer, hashes=hashes, chunk=chunk, buckets=L // chunk)
    torch.manual_seed(5)
    ours.rotations.copy_(torch.randn(1, D, hashes, L // chunk // 2, dtype=torch.float64).transpose(1, 2))
    x = tokens()
    qk, v = split(x, x.cos())
    torch.manual_seed(5)
    theirs = peer(qk.flatten(0, 1), v.flatten(0, 1))[0].unflatten(0, (N, H))
    out = ours(qk, qk, v)
    is_first = in_first_chunk(ours, qk, first_real(L, L, L, L))
    same_with_gradients(out[~is_first], theirs[~is_first], x)
    assert not torch.allclose(out[is_first], theirs[is_first], atol=1e-3)
