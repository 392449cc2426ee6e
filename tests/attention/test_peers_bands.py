"""Banded and blocked attention against transformers' Longformer and BigBird and the local-attention package."""

import pytest
import torch
import torch.nn.functional as F
from support.peers import DIM, SIZES, H, N, first_real, merge, package, same_with_gradients, split, tokens

from lra.attention.base import Sizes
from lra.attention.bigbird import BigBird
from lra.attention.local import Local
from lra.attention.longformer import Longformer

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
