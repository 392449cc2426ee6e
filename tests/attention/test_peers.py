"""Mechanisms against public implementations with the same weights, in float64.

None of these packages is a dependency: `make test-peers` installs them, and a test whose package is absent is skipped.
Results agree up to rounding; the docstrings name the cases in which a package computes something else.
"""

import math
from functools import partial

import pytest
import torch
from support.peers import DIM, D, H, L, N, first_real, make, merge, package, run, same, split, tokens

from lra.attention.nystrom import Nystrom, NystromOriginal
from lra.attention.softmax import Softmax
from lra.model.mega import Mega
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


def mega_peer(monkeypatch, weights, chunk, norm, prenorm, truncation):
    """Build transformers' block, with its cast to float32 and its six-digit Laplace constants patched to float64."""
    name = "transformers.models.deprecated.mega.modeling_mega"
    peers = pytest.importorskip(name, reason="transformers 5 has no MEGA, up to 4.57 it does: make test-peers")
    from transformers.activations import LaplaceActivation

    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(LaplaceActivation.forward, "__defaults__", (math.sqrt(0.5), math.sqrt(0.25 / math.pi)))
    torch.manual_seed(0)
    sizes = {"hidden_size": DIM, "intermediate_size": 20, "nffn_hidden_size": 20, "ema_projection_size": 5}
    sizes |= {"shared_representation_size": 6, "max_positions": chunk or L, "chunk_size": chunk or -1}
    kinds = {"relative_positional_bias": "simple", "attention_activation": weights, "normalization_type": f"{norm}norm"}
    kinds |= {"normalize_before_mega": prenorm, "normalize_before_ffn": prenorm, "use_chunking": chunk is not None}
    peer = peers.MegaBlock(peers.MegaConfig(**sizes, **kinds, truncation=truncation)).double()
    for key, tensor in peer.state_dict().items():
        if tensor.is_floating_point():
            tensor.normal_(std=0.5)
        if key.endswith("running_var"):
            tensor.abs_()
    return peer.eval()


# Our parameter names -> names in transformers.
MEGA_KEYS = {
    "values": "mega_layer.v_proj", "gates": "mega_layer.mx_proj", "output": "mega_layer.h_proj",
    "mlp.0": "nffn.fc1", "mlp.2": "nffn.fc2", "norm": "mega_layer.norm.norm", "mlp_norm": "nffn.norm.norm",
    "norm.scale": "mega_layer.norm.norm.scalar", "mlp_norm.scale": "nffn.norm.norm.scalar",
    "bias.weight": "mega_layer.rel_pos_bias.rel_pos_bias", "qk_scale": "mega_layer.qk_weight",
    "qk_shift": "mega_layer.qk_bias", "ema.delta": "mega_layer.ema_gate.damping_factor",
    "ema.alpha": "mega_layer.ema_gate.decay_factor", "ema.beta": "mega_layer.ema_gate.ema_expansion_matrix",
    "ema.gamma": "mega_layer.ema_gate.kernel_projection_matrix",
    "ema.omega": "mega_layer.ema_gate.residual_weight",
}  # fmt: skip


@pytest.mark.parametrize("weights", ["softmax", "laplace"])
@pytest.mark.parametrize("chunk", [None, 16])
@pytest.mark.parametrize("norm,prenorm", [("layer", True), ("scale", False), ("batch", True)])
@pytest.mark.parametrize("truncation", [None, 9])
@pytest.mark.parametrize("masked", [False, True])
def test_mega_matches_transformers(monkeypatch, weights, chunk, norm, prenorm, truncation, masked):
    """norm=rms is left out: the RMS norm of transformers does not divide by the RMS."""
    peer = mega_peer(monkeypatch, weights, chunk, norm, prenorm, truncation)
    sizes = {"dim": DIM, "hidden": 20, "dropout": 0.1, "length": L, "z": 6, "ndim": 5, "truncation": truncation}
    ours = Mega(partial(Softmax, weights=weights), **sizes, chunk=chunk, norm=norm, prenorm=prenorm).double().eval()
    theirs = peer.state_dict()
    state = {}
    for key, tensor in ours.state_dict().items():
        stem, _, leaf = key.rpartition(".")
        state[key] = theirs.pop(MEGA_KEYS.get(key) or f"{MEGA_KEYS[stem]}.{leaf}").reshape(tensor.shape)
    # Every peer parameter was copied, so the parameter counts agree.
    assert not theirs
    ours.load_state_dict(state)
    x = tokens()
    expected = peer(x.transpose(0, 1), attention_mask=SUFFIX.long() if masked else None)[0].transpose(0, 1)
    same(ours(x, SUFFIX if masked else None)[0][SUFFIX], expected[SUFFIX])
