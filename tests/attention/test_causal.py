"""Causal mechanisms, the controls without attention (mean, none), recurrent state sizes and Mamba's initial steps."""

import pytest
import torch
from conftest import CHECK_SIZES, config

from lra.attention.base import Sizes
from lra.attention.controls import Identity, Mean
from lra.attention.sdpa import SDPA
from lra.attention.softmax import Softmax
from lra.bench import workloads
from lra.varlen import VarlenLayout

# More than two blocks of 64 tokens, the block length of the causal sums.
L = 130
CAUSAL = ("sdpa", "linear", "linear_unnormalised", "conv", "sparse", "sparse_fixed", "lion_s")
CAUSAL += ("lion_d", "retnet", "gla", "hgrn2", "delta_net", "gated_delta_net", "mamba")
CAUSAL += ("mamba2", "hydra", "rg_lru", "min_gru", "min_lstm", "hyena", "based")
UNIDIRECTIONAL = ("s4d_lin", "s4d_inv", "s4d_legs", "s5", "lru", "long_conv")
OPTIONS = {name: {"causal": True} for name in CAUSAL} | {name: {"bidirectional": False} for name in UNIDIRECTIONAL}


def build_mixer(name, **options):
    torch.manual_seed(0)
    experiment = config(name, *CHECK_SIZES)
    task, attn = experiment.task.replace(length=L), experiment.attn.replace(**options)
    return experiment.replace(task=task, attn=attn).block_factory()().mixer.double().eval()


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("holes", [False, True])
def test_causal_output_ignores_later_tokens(name, holes):
    causal, noncausal = build_mixer(name, **OPTIONS[name]), build_mixer(name)
    assert causal.causal and not noncausal.causal
    x = torch.randn(2, L, 16, dtype=torch.float64)
    mask = (torch.rand(2, L) < 0.6) | (torch.arange(L) == 1) if holes else None
    position = 77
    changed_x = torch.cat([x[:, : position + 1], torch.randn(2, L - position - 1, 16, dtype=torch.float64)], 1)
    outputs, changed_outputs = (causal(t, mask)[:, : position + 1] for t in (x, changed_x))
    assert outputs.isfinite().all() and torch.allclose(outputs, changed_outputs, rtol=1e-9, atol=1e-11)
    assert not torch.allclose(noncausal(x, mask)[:, :position], noncausal(changed_x, mask)[:, :position], atol=1e-6)


SIZES = Sizes(heads=2, head_dim=3, value_dim=5, length=L)


def draw_qkv(L=L):
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, L, d, generator=g).double() for d in (3, 3, 5))
    mask = torch.rand(2, L, generator=g) < 0.7
    mask[:, 0] = True
    return q, k, v, mask


def test_causal_packed_attention_matches_padded():
    q, k, v, _ = draw_qkv()
    mask = torch.arange(L) < torch.tensor([L, 40])[:, None]
    layout, attention = VarlenLayout(mask), SDPA(SIZES, causal=True)
    packed = attention.varlen(*(layout.pack(t, 2) for t in (q, k, v)), layout)
    torch.testing.assert_close(packed, layout.pack(attention(q, k, v, mask), 2))


def test_mean_equals_softmax_with_equal_scores():
    q, _, v, mask = draw_qkv(6)
    torch.testing.assert_close(Mean(SIZES)(q, q, v, mask), Softmax(SIZES)(q * 0, q, v, mask))
    torch.testing.assert_close(Mean(SIZES)(q, q, v), Softmax(SIZES)(q * 0, q, v))


def test_identity_equals_softmax_to_self():
    _, _, v, mask = draw_qkv(6)
    orthogonal = 1e3 * torch.eye(6).double().expand(2, 2, 6, 6)
    exact = Softmax(Sizes(heads=2, head_dim=6, value_dim=5, length=6))(orthogonal, orthogonal, v, mask)
    torch.testing.assert_close(Identity(SIZES)(orthogonal, orthogonal, v, mask)[:, :, 0], exact[:, :, 0])
    torch.testing.assert_close(Identity(SIZES)(orthogonal, orthogonal, v, None), v)


def test_controls_have_same_parameter_shapes_as_sdpa():
    shapes = [{k: p.shape for k, p in config(n).classifier().state_dict().items()} for n in ("sdpa", "mean", "none")]
    assert shapes[0] == shapes[1] == shapes[2]


# State elements at d = 16 with 2 heads of size 8: the largest tensor that a causal scan carries (docs/recurrent.md).
STATES = {"sdpa": None, "linear": 2 * 8 * 9, "linear_unnormalised": 2 * 8 * 8, "lion_s": 2 * 8 * 9, "lion_d": 2 * 8 * 9}
STATES |= {"retnet": 2 * 8 * 16, "gla": 2 * 4 * 8, "hgrn2": 2 * 8 * 8, "delta_net": 2 * 8 * 8, "mamba": 32 * 16}
STATES |= {"mamba2": 2 * 64 * 16, "hydra": 2 * 64 * 16, "rg_lru": 16, "min_gru": 24, "min_lstm": 24, "hyena": None}
STATES |= {"based": 2 * 273 * 9, "s4d_lin": 16 * 64, "s5": 128, "lru": 2 * 128, "mega": 16 * 16, "conv": None}


def test_benchmark_reports_recurrent_state_sizes():
    assert {name: workloads.layer_sizes(config(name, *CHECK_SIZES))["state"] for name in STATES} == STATES


def test_mamba_initial_steps_and_decays_span_their_ranges():
    """A state remembers 1 / (Δ A) tokens, so the smallest step and the smallest decay give the longest horizon."""
    mamba = build_mixer("mamba", step_min=1e-5, decay_min=0.5, decay_max=8.0, spacing="log")
    steps = torch.nn.functional.softplus(mamba.step_bias)
    assert 1e-5 * (1 - 1e-6) <= steps.min() < 1e-4 and steps.max() <= 0.1
    torch.testing.assert_close(mamba.log_A[0].exp(), torch.logspace(-1, 3, 16, base=2.0).double())
    torch.testing.assert_close(build_mixer("mamba").log_A[0].exp(), torch.arange(1.0, 17).double())
