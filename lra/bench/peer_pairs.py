"""Pairs of a mechanism and a public implementation of it on the same inputs, with the same weights.

A function ``build_<name>`` builds a pair for ``batch`` sequences of ``n`` tokens. It imports the package of the peer,
since none of them is a required dependency.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention.base import Sizes, merge_heads, split_heads
from ..attention.bigbird import BigBird
from ..attention.conv import Conv
from ..attention.fnet import FNet
from ..attention.h_transformer_1d import HTransformer1D
from ..attention.linear import Linear, Performer
from ..attention.linformer import Linformer
from ..attention.local import Local
from ..attention.longformer import Longformer
from ..attention.nystrom import Nystrom, NystromOriginal
from ..attention.reformer import Reformer
from ..ops.pinv import cubic

HEADS = 2
HEAD_DIM = 32
DIM = HEADS * HEAD_DIM


@dataclass(frozen=True, kw_only=True)
class PeerPair:
    """A mechanism and its peer on the same inputs.

    Args:
        mechanism, reference: functions without arguments that return the output of the mechanism and of its peer.
        inputs: tensors whose gradients both compute.
        modules: modules whose parameters get gradients too.
    """

    mechanism: Callable[[], Tensor]
    reference: Callable[[], Tensor]
    inputs: list[Tensor]
    modules: list[nn.Module]


def sizes(n: int) -> Sizes:
    """The sizes of a mechanism for sequences of n tokens."""
    return Sizes(heads=HEADS, head_dim=HEAD_DIM, value_dim=HEAD_DIM, length=n)


def heads_inputs(n: int, batch: int, dtype: torch.dtype) -> list[Tensor]:
    """Random q, k, v (N,H,L,D)."""
    generator = torch.Generator().manual_seed(0)
    shape = (batch, HEADS, n, HEAD_DIM)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for _ in range(3)]


def token_inputs(n: int, batch: int, dtype: torch.dtype) -> Tensor:
    """Random token vectors (N,L,d)."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch, n, DIM, generator=generator).to(dtype).requires_grad_()


class Copy(nn.Module):
    """An identity whose result may be changed in place."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clone()


def without_projections(module: nn.Module, *names: str) -> nn.Module:
    """Replace the linear maps of a peer by identities, so that mechanisms alone are compared."""
    for name in names:
        setattr(module, name, nn.Identity())
    return module


def from_projections(peer: nn.Module, inputs: list[Tensor]) -> Tensor:
    """Call a peer whose one projection to q, k and v is an identity."""
    projected = torch.cat([merge_heads(x) for x in inputs], -1)  # (N,L,3d)
    return split_heads(peer(projected), HEADS)


def same_tokens(
    mechanism: nn.Module, reference: Callable[[Tensor], Tensor], x: Tensor, modules: list[nn.Module]
) -> PeerPair:
    """Pair an ``Attention`` with a peer without projections; the tokens x are queries, keys and values of both."""

    def forward() -> Tensor:
        heads = split_heads(x, HEADS)
        return merge_heads(mechanism(heads, heads, heads))

    return PeerPair(mechanism=forward, reference=lambda: reference(x), inputs=[x], modules=modules)


def build_fnet(n: int, batch: int, dtype: torch.dtype) -> PeerPair:
    from transformers import FNetConfig
    from transformers.models.fnet.modeling_fnet import FNetBasicFourierTransform

    x = token_inputs(n, batch, dtype)
    mechanism = FNet(sizes(n), dim=DIM)
    reference = FNetBasicFourierTransform(FNetConfig(hidden_size=DIM, max_position_embeddings=n))
    return PeerPair(mechanism=lambda: mechanism(x), reference=lambda: reference(x)[0], inputs=[x], modules=[])


def build_performer(n: int, batch: int, dtype: torch.dtype, *, kernel: Literal["exp", "relu"]) -> PeerPair:
    from performer_pytorch.performer_pytorch import FastAttention

    inputs = heads_inputs(n, batch, dtype)
    mechanism = Performer(sizes(n), kernel=kernel, redraw="never")
    reference = FastAttention(HEAD_DIM, nb_features=256, generalized_attention=kernel == "relu").to(dtype)
    # Both have the same random features.
    mechanism.rows.draw.copy_(reference.projection_matrix)
    return PeerPair(
        mechanism=lambda: mechanism(*inputs), reference=lambda: reference(*inputs), inputs=inputs, modules=[]
    )


def build_linear(n: int, batch: int, dtype: torch.dtype, *, causal: bool = False) -> PeerPair:
    from fast_transformers.attention.causal_linear_attention import CausalLinearAttention
    from fast_transformers.attention.linear_attention import LinearAttention
    from fast_transformers.masking import FullMask, LengthMask, TriangularCausalMask

    inputs = heads_inputs(n, batch, dtype)
    mechanism = Linear(sizes(n), causal=causal)
    if causal:
        reference = CausalLinearAttention(HEAD_DIM)
        attention_mask = TriangularCausalMask(n)
    else:
        reference = LinearAttention(HEAD_DIM)
        attention_mask = FullMask(n)
    lengths = LengthMask(torch.full((batch,), n))

    def forward() -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in inputs)  # (N,L,H,D)
        out = reference(q, k, v, attention_mask, lengths, lengths)
        return out.transpose(1, 2)

    return PeerPair(mechanism=lambda: mechanism(*inputs), reference=forward, inputs=inputs, modules=[])


def build_linear_features(n: int, batch: int, dtype: torch.dtype) -> PeerPair:
    from performer_pytorch.performer_pytorch import linear_attention

    inputs = heads_inputs(n, batch, dtype)
    mechanism = Linear(sizes(n))

    def forward() -> Tensor:
        q, k, v = inputs
        return linear_attention(F.elu(q) + 1, F.elu(k) + 1, v)

    return PeerPair(mechanism=lambda: mechanism(*inputs), reference=forward, inputs=inputs, modules=[])


def build_local(n: int, batch: int, dtype: torch.dtype, *, reach: int) -> PeerPair:
    """Build attention within blocks of 64 tokens (reach=0), or to 64 tokens on each side (reach=1)."""
    from local_attention import LocalAttention

    inputs = heads_inputs(n, batch, dtype)
    mechanism = Longformer(sizes(n), window=129) if reach else Local(sizes(n), block=64)
    reference = LocalAttention(64, look_backward=reach, look_forward=reach, exact_windowsize=reach > 0)
    return PeerPair(
        mechanism=lambda: mechanism(*inputs), reference=lambda: reference(*inputs), inputs=inputs, modules=[]
    )


def build_longformer(n: int, batch: int, dtype: torch.dtype) -> PeerPair:
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    x = token_inputs(n, batch, dtype)
    config = LongformerConfig(
        hidden_size=DIM, num_attention_heads=HEADS, attention_window=[256], attention_probs_dropout_prob=0.0
    )
    peer = without_projections(LongformerSelfAttention(config, 0), "query", "key", "value")
    # The peer scales its queries in place, so they must be a copy of the tokens.
    peer.query = Copy()
    is_masked = torch.zeros(batch, n, dtype=torch.bool)
    masks = {"attention_mask": is_masked.to(dtype), "is_index_masked": is_masked, "is_index_global_attn": is_masked}
    mechanism = Longformer(sizes(n), window=257)
    return same_tokens(mechanism, lambda x: peer(x, **masks, is_global_attn=False)[0], x, [])


def build_bigbird(n: int, batch: int, dtype: torch.dtype) -> PeerPair:
    from transformers import BigBirdConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

    x = token_inputs(n, batch, dtype)
    config = BigBirdConfig(hidden_size=DIM, num_attention_heads=HEADS, block_size=64, num_random_blocks=3)
    # In evaluation mode the peer would attend to block 0 instead of random blocks.
    peer = BigBirdBlockSparseAttention(config, seed=0).train()
    peer = without_projections(peer, "query", "key", "value")
    is_real = torch.ones(batch, n, dtype=dtype)
    blocked, band, from_mask, to_mask = BigBirdModel.create_masks_for_block_sparse_attn(is_real, 64)
    mechanism = BigBird(sizes(n), block=64)
    return same_tokens(mechanism, lambda x: peer(x, band, from_mask, to_mask, blocked, blocked)[0], x, [])


def build_nystrom(n: int, batch: int, dtype: torch.dtype) -> PeerPair:
    from nystrom_attention.nystrom_attention import NystromAttention

    inputs = heads_inputs(n, batch, dtype)
    peer = NystromAttention(DIM, dim_head=HEAD_DIM, heads=HEADS, num_landmarks=64, residual_conv_kernel=33).to(dtype)
    peer = without_projections(peer, "to_qkv", "to_out")
    pinv = partial(cubic, steps=6, init="batch")
    mechanism = Nystrom(sizes(n), landmarks=64, kernel=33, pinv=pinv).to(dtype)
    mechanism.conv.load_state_dict(peer.res_conv.state_dict())
    reference = partial(from_projections, peer, inputs)
    return PeerPair(mechanism=lambda: mechanism(*inputs), reference=reference, inputs=inputs, modules=[mechanism, peer])


def build_nystrom_original(n: int, batch: int, dtype: torch.dtype) -> PeerPair:
    from transformers import NystromformerConfig
    from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

    x = token_inputs(n, batch, dtype)
    config = NystromformerConfig(
        hidden_size=DIM, num_attention_heads=HEADS, num_landmarks=64, segment_means_seq_len=n, conv_kernel_size=35
    )
    peer = NystromformerSelfAttention(config).to(dtype).eval()
    peer = without_projections(peer, "query", "key", "value")
    pinv = partial(cubic, steps=6, init="batch")
    mechanism = NystromOriginal(sizes(n), landmarks=64, kernel=35, pinv=pinv).to(dtype)
    mechanism.conv.load_state_dict(peer.conv.state_dict())
    return same_tokens(mechanism, lambda x: peer(x)[0], x, [mechanism, peer])


def build_linformer(n: int, batch: int, dtype: torch.dtype) -> PeerPair:
    from linformer.linformer import LinformerSelfAttention

    x = token_inputs(n, batch, dtype)
    peer = LinformerSelfAttention(DIM, seq_len=n, k=64, heads=HEADS, dim_head=HEAD_DIM).to(dtype)
    peer = without_projections(peer, "to_q", "to_k", "to_v", "to_out")
    mechanism = Linformer(sizes(n), rank=64, share_heads=True, share_kv=False).to(dtype)
    with torch.no_grad():
        mechanism.compress_k.copy_(peer.proj_k.T)
        mechanism.compress_v.copy_(peer.proj_v.T)
    return same_tokens(mechanism, peer, x, [mechanism, peer])


def build_reformer(n: int, batch: int, dtype: torch.dtype) -> PeerPair:
    from reformer_pytorch.reformer_pytorch import LSHAttention

    qk, _, v = heads_inputs(n, batch, dtype)
    mechanism = Reformer(sizes(n), hashes=2, chunk=64, buckets=n // 64, scope="chunk").to(dtype).eval()
    peer = LSHAttention(bucket_size=64, n_hashes=2, attend_across_buckets=True, allow_duplicate_attention=True).eval()

    def forward() -> Tensor:
        # The peer takes one batch of all heads.
        out = peer(qk.flatten(0, 1), v.flatten(0, 1))[0]  # (N H,L,D)
        return out.unflatten(0, (batch, HEADS))

    return PeerPair(mechanism=lambda: mechanism(qk, qk, v), reference=forward, inputs=[qk, v], modules=[])


def build_h_transformer(n: int, batch: int, dtype: torch.dtype) -> PeerPair:
    from h_transformer_1d.h_transformer_1d import HAttention1D

    inputs = heads_inputs(n, batch, dtype)
    peer = HAttention1D(DIM, heads=HEADS, dim_head=HEAD_DIM, block_size=16)
    peer = without_projections(peer, "to_qkv", "to_out")
    mechanism = HTransformer1D(sizes(n), block=16)
    reference = partial(from_projections, peer, inputs)
    return PeerPair(mechanism=lambda: mechanism(*inputs), reference=reference, inputs=inputs, modules=[])


def build_conv(n: int, batch: int, dtype: torch.dtype) -> PeerPair:
    x = token_inputs(n, batch, dtype)
    mechanism = Conv(sizes(n), dim=DIM).to(dtype)

    def forward() -> Tensor:
        filters = mechanism.filters[:, None]  # (d,1,width)
        reach = filters.shape[-1] // 2
        values = mechanism.values(x).mT  # (N,d,L)
        numerator = F.conv1d(values, filters, padding=reach, groups=DIM)
        # The sum of the absolute weights inside the sequence.
        ones = torch.ones(1, DIM, n, dtype=dtype)
        denominator = F.conv1d(ones, filters.abs(), padding=reach, groups=DIM)
        mixed = numerator / denominator  # (N,d,L)
        return mechanism.output(mixed.mT)

    return PeerPair(mechanism=lambda: mechanism(x), reference=forward, inputs=[x], modules=[mechanism])
