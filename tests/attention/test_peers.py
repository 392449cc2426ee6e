"""Mechanisms against public implementations with the same weights, in float64.

None of these packages is a dependency: `make test-peers` installs them, and a test whose package is absent is skipped.
Results agree up to rounding; the docstrings name the cases in which a package computes something else.
"""

from functools import partial

import pytest
import torch
from support.peers import DIM, D, H, L, N, first_real, make, merge, package, run, same, split, tokens

from lra.attention.nystrom import Nystrom, NystromOriginal
from lra.attention.softmax import Softmax
from lra.ops.pinv import cubic

pytestmark = pytest.mark.peers
SUFFIX = first_real(L, L, 30, 5)
ADDITIVE_SUFFIX = torch.zeros(N, 1, 1, L, dtype=torch.float64).masked_fill(~SUFFIX[:, None, None], float("-inf"))
PINV = partial(cubic, steps=6, init="batch")


@pytest.mark.parametrize("masked", [False, True])
def test_softmax_matches_transformers_bert(masked):
    bert = package("transformers.models.bert.modeling_bert")
    torch.manual_seed(0)
    peer = bert.BertSelfAttention(bert.BertConfig(hidden_size=DIM, num_attention_heads=H, attn_implementation="eager"))
    peer, x = peer.double().eval(), tokens()
    same(run(make(Softmax), peer, x, SUFFIX if masked else None), peer(x, ADDITIVE_SUFFIX if masked else None)[0])


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
