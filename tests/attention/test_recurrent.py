"""S4D, S5 and LRU against lra/reference and the released modules; causal mechanisms, controls and recurrent states."""

import json
import math
from pathlib import Path

import pytest
import torch
from conftest import CHECK_SIZES, config
from support.features import masks, qkv, s5_parts, same_with_gradients, set_parameters, tensor

from lra.attention import delta_net
from lra.attention.base import Sizes
from lra.attention.controls import Identity, Mean
from lra.attention.lru import LRU
from lra.attention.s4d import S4D
from lra.attention.s5 import S5
from lra.attention.sdpa import SDPA
from lra.attention.softmax import Softmax
from lra.bench import workloads
from lra.ops.ssm import hippo_legs
from lra.reference import diagonal_rnn, s4d
from lra.varlen import VarlenLayout

DIM, STATES, L = 3, 8, 13
SIZES = Sizes(heads=1, head_dim=DIM, value_dim=DIM, length=L)
RELEASED = json.loads(Path(__file__).with_name("released.json").read_text())
# More than two blocks of 64 tokens, the block length of the causal sums.
LENGTH = 130
CAUSAL = ("sdpa", "linear", "linear_unnormalised", "conv", "sparse", "sparse_fixed", "lion_s")
CAUSAL += ("lion_d", "retnet", "gla", "hgrn2", "delta_net", "gated_delta_net", "mamba")
CAUSAL += ("mamba2", "hydra", "rg_lru", "min_gru", "min_lstm", "hyena", "based")
UNIDIRECTIONAL = ("s4d_lin", "s4d_inv", "s4d_legs", "s5", "lru", "long_conv")
OPTIONS = {name: {"causal": True} for name in CAUSAL} | {name: {"bidirectional": False} for name in UNIDIRECTIONAL}
LONG_SIZES = Sizes(heads=2, head_dim=4, value_dim=3, length=LENGTH)


def make(kind, seed=0, dim=DIM, **options):
    torch.manual_seed(seed)
    return kind(SIZES, dim=dim, **({"states": STATES} | ({"blocks": 2} if kind is S5 else {}) | options)).double()


def reference_layer(model, u):
    """Run lra/reference on one sequence u (L,d)."""
    if isinstance(model, S4D):
        log_dt, log_A_real, A_imag, B, C, D = model.parameters()
        B, C = torch.view_as_complex(B), torch.view_as_complex(C)
        A, B = (x.expand(DIM, -1) for x in (torch.complex(-log_A_real.exp(), A_imag), B))
        layer = s4d.s4d if len(C) == 1 else s4d.bidirectional_s4d
        channels = zip(u.T, A, B, *C, D, log_dt.exp(), strict=True)
        return torch.stack([layer(*channel, method=model.discretisation) for channel in channels], 1)
    b, c = (torch.view_as_complex(x) for x in (model.b, model.c))
    if isinstance(model, LRU):
        return diagonal_rnn.lru(u, model.nu, model.theta, model.gamma, b, list(c), model.skip)
    decay = model.decay.clamp(max=-1e-4) if model.clip else model.decay
    A, step = torch.complex(decay, model.frequency), model.log_step.exp()
    return diagonal_rnn.s5(u, A, b, list(c), model.skip, step, method=model.discretisation)


VARIANTS = [
    (S5, {}), (LRU, {}), (S4D, {}), (S4D, {"bidirectional": False}),
    (S5, {"bidirectional": False, "discretisation": "bilinear"}),
    (S5, {"clip": True, "c_init": "complex_normal", "discretisation": "bilinear"}),
    (S4D, {"shared": True, "init": "inv", "discretisation": "bilinear"}),
    (LRU, {"bidirectional": False, "r_min": 0.9, "r_max": 0.999, "max_phase": 0.3}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options"), VARIANTS, ids=str)
@pytest.mark.parametrize("length", [1, 2, 13, 32])
def test_ssm_layers_match_reference(length, kind, options):
    model = make(kind, **options)
    if getattr(model, "clip", False):
        model.decay.data[1] = 0.3
    g = torch.Generator().manual_seed(1)
    x = torch.randn(2, length, DIM, generator=g, dtype=torch.float64)
    mask = torch.rand(2, length, generator=g) < 0.7
    # A masked token counts as zero in the recurrence, but not in the skip connection D u.
    masked_x = x.requires_grad_() * mask[..., None]
    skip = list(model.parameters())[-1]
    expected = torch.stack([reference_layer(model, u) for u in masked_x]) + skip * (x - masked_x)
    same_with_gradients(model(x, mask), expected, [x, *model.parameters()])


S5_OPTIONS = {"s5_zoh": {}, "s5_bilinear_causal": {"discretisation": "bilinear", "bidirectional": False}}
S5_OPTIONS["s5_complex"] = {"clip": True}


@pytest.mark.parametrize(("case", "options"), S5_OPTIONS.items())
def test_s5_matches_released_module(case, options):
    released, x = RELEASED["s5"][case], tensor(RELEASED["x"])
    model = set_parameters(make(S5, **options), **s5_parts(released["params"]))
    torch.testing.assert_close(model(x[None])[0], tensor(released["y"]), rtol=1e-10, atol=1e-10)
    # In the case with clip one eigenvalue was moved away from its initial value.
    if not options.get("clip"):
        fresh = make(S5)
        torch.testing.assert_close(fresh.decay, model.decay, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(fresh.frequency, model.frequency, rtol=1e-6, atol=1e-6)


def test_lru_matches_minimal_lru():
    p, x = {key: tensor(value) for key, value in RELEASED["lru"]["params"].items()}, tensor(RELEASED["x"])
    b, c = (torch.stack([p[f"{name}_re"], p[f"{name}_im"]], -1) for name in "BC")
    model = set_parameters(make(LRU, states=5, bidirectional=False), b=b, c=c[None], skip=p["D"])
    set_parameters(model, **{name: p[f"{name}_log"] for name in ("nu", "theta", "gamma")})
    torch.testing.assert_close(model(x[None])[0], tensor(RELEASED["lru"]["y"]), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", RELEASED["s4d"])
def test_s4d_matches_released_module(case):
    """The released kernel in its two-sided convolution. The initial A also matches the released module."""
    init, disc = case.split("_")
    p, x = {key: tensor(value) for key, value in RELEASED["s4d"][case]["params"].items()}, tensor(RELEASED["x_s4d"])
    torch.manual_seed(0)
    model = S4D(SIZES, dim=DIM, states=8, init=init, discretisation=disc, shared=disc == "bilinear").double()
    torch.testing.assert_close(model.log_A_real, p["kernel.A_real"], rtol=1e-6, atol=1e-6)
    # The released module stores the other one of each conjugate pair, and clips frequencies from below at 1e-4.
    torch.testing.assert_close(model.A_imag.sort().values, p["kernel.A_imag"].sort().values, rtol=1e-5, atol=1.1e-4)
    state = {"log_dt": p["kernel.inv_dt"][:, 0], "log_A_real": p["kernel.A_real"], "A_imag": -p["kernel.A_imag"]}
    set_parameters(model, **state, B=p["kernel.B"][0], C=p["kernel.C"], D=p["D"][0])
    torch.testing.assert_close(model(x.mT).mT, tensor(RELEASED["s4d"][case]["y"]), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "c_init, std", [("lecun_normal", (64 * 48) ** -0.5), ("trunc_standard_normal", 1 / 8), ("complex_normal", 0.5**0.5)]
)
def test_s5_initial_std_matches_flax(c_init, std):
    """Standard deviations of flax's initialisers for 64 states and 48 channels, within three standard errors."""
    model = make(S5, dim=48, states=64, blocks=4, c_init=c_init)
    for parameter, expected in ((model.c, std), (model.b, 0.125 * 0.5**0.5)):
        assert parameter.std().item() == pytest.approx(expected, rel=3 * (2 * parameter.numel() / 4) ** -0.5)
    assert (model.frequency < 0).all() and torch.equal(model.frequency[:8], model.frequency[8:16])


def test_s5_initial_impulse_response_matches_hippo():
    """With one block, transforming B and C back by the eigenvectors V gives a real model with the HiPPO matrix S."""
    model = make(S5, blocks=1, bidirectional=False)
    values, vectors = hippo_legs(STATES)
    V = vectors[:, : STATES // 2]
    b, c = torch.view_as_complex(model.b), torch.view_as_complex(model.c)[0]
    S, B, C = (vectors @ torch.diag(values) @ vectors.mH).real, (2 * V @ b).real, (2 * c @ V.mH).real
    for t in (0.0, 0.3, 1.0):
        response = 2 * (c @ torch.diag((t * torch.complex(model.decay, model.frequency)).exp()) @ b).real
        torch.testing.assert_close(response, C @ torch.linalg.matrix_exp(t * S) @ B, rtol=1e-5, atol=1e-6)


def test_lru_initial_eigenvalues_are_uniform_on_ring():
    model = make(LRU, states=4000, r_min=0.5, r_max=0.9, max_phase=1.0)
    radius, phase = (-model.nu.exp()).exp(), model.theta.exp()
    assert radius.min() >= 0.5 and radius.max() <= 0.9 and phase.min() > 0 and phase.max() <= 1
    quantiles = ((radius**2 - 0.25) / (0.81 - 0.25)).sort().values, phase.sort().values
    uniform = (torch.arange(4000) + 0.5) / 4000
    # Kolmogorov-Smirnov test: a deviation above 1.95 / √n has probability 1e-3.
    for quantile in quantiles:
        assert (quantile - uniform).abs().max() < 1.95 / math.sqrt(4000)
    torch.testing.assert_close(model.gamma.exp() ** 2, 1 - radius**2, rtol=1e-5, atol=1e-6)
    assert model.b.std().item() == pytest.approx((2 * DIM) ** -0.5, rel=0.05)
    assert model.c.std().item() == pytest.approx(4000**-0.5, rel=0.05)


def test_s4d_legs_initial_b_is_clipped_hippo_b():
    """The entries of Vᴴ B_LegS, B_i = √(2i + 1), for the eigenvalues with positive imaginary parts."""
    b = torch.view_as_complex(S4D(SIZES, dim=DIM, states=STATES, init="legs").B)[0]
    vectors = hippo_legs(STATES)[1][:, STATES // 2 :]
    expected = vectors.mH @ torch.tensor([2 * i + 1 for i in range(STATES)]).sqrt().to(vectors)
    torch.testing.assert_close(b, torch.complex(expected.real, expected.imag.clamp(-2, 2)).to(b))


def build_mixer(name, **options):
    torch.manual_seed(0)
    experiment = config(name, *CHECK_SIZES)
    task, attn = experiment.task.replace(length=LENGTH), experiment.attn.replace(**options)
    return experiment.replace(task=task, attn=attn).block_factory()().mixer.double().eval()


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("holes", [False, True])
def test_causal_output_ignores_later_tokens(name, holes):
    causal, noncausal = build_mixer(name, **OPTIONS[name]), build_mixer(name)
    assert causal.causal and not noncausal.causal
    x = torch.randn(2, LENGTH, 16, dtype=torch.float64)
    mask = (torch.rand(2, LENGTH) < 0.6) | (torch.arange(LENGTH) == 1) if holes else None
    position = 77
    changed_x = torch.cat([x[:, : position + 1], torch.randn(2, LENGTH - position - 1, 16, dtype=torch.float64)], 1)
    outputs, changed_outputs = (causal(t, mask)[:, : position + 1] for t in (x, changed_x))
    assert outputs.isfinite().all() and torch.allclose(outputs, changed_outputs, rtol=1e-9, atol=1e-11)
    assert not torch.allclose(noncausal(x, mask)[:, :position], noncausal(changed_x, mask)[:, :position], atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_hydra_reads_past_masked_tokens(causal):
    """Without a wider convolution the real tokens have the outputs of the sequence of real tokens alone."""
    mixer = build_mixer("hydra", conv=1, causal=causal)
    x = torch.randn(1, LENGTH, 16, dtype=torch.float64)
    mask = torch.rand(1, LENGTH) < 0.6
    torch.testing.assert_close(mixer(x, mask)[:, mask[0]], mixer(x[:, mask[0]]))


def test_unit_keys_of_16_bits_have_unit_length_in_float32():
    torch.testing.assert_close(delta_net._unit(torch.randn(2, 2, 8, 32).bfloat16()).norm(dim=-1), torch.ones(2, 2, 8))


def test_causal_packed_attention_matches_padded():
    (q, k, v), mask = qkv(LENGTH), masks(LENGTH)["suffix"]
    layout, attention = VarlenLayout(mask), SDPA(LONG_SIZES, causal=True)
    packed = attention.varlen(*(layout.pack(t, 2) for t in (q, k, v)), layout)
    torch.testing.assert_close(packed, layout.pack(attention(q, k, v, mask), 2))


def test_mean_equals_softmax_with_equal_scores():
    (q, _, v), mask = qkv(6), masks(6)["holes"]
    torch.testing.assert_close(Mean(LONG_SIZES)(q, q, v, mask), Softmax(LONG_SIZES)(q * 0, q, v, mask))
    torch.testing.assert_close(Mean(LONG_SIZES)(q, q, v), Softmax(LONG_SIZES)(q * 0, q, v))


def test_identity_equals_softmax_to_self():
    (_, _, v), mask = qkv(6), masks(6)["holes"]
    orthogonal = 1e3 * torch.eye(6).double().expand(3, 2, 6, 6)
    exact = Softmax(Sizes(heads=2, head_dim=6, value_dim=3, length=6))(orthogonal, orthogonal, v, mask)
    torch.testing.assert_close(Identity(LONG_SIZES)(orthogonal, orthogonal, v, mask)[:, :, 0], exact[:, :, 0])
    torch.testing.assert_close(Identity(LONG_SIZES)(orthogonal, orthogonal, v, None), v)


def test_controls_have_same_parameter_shapes_as_sdpa():
    shapes = [{k: p.shape for k, p in config(n).classifier().state_dict().items()} for n in ("sdpa", "mean", "none")]
    assert shapes[0] == shapes[1] == shapes[2]


# State elements at d = 16 with 2 heads of size 8: the largest tensor that a causal scan carries (docs/recurrent.md).
STATE_SIZES = {"sdpa": None, "linear": 2 * 8 * 9, "linear_unnormalised": 2 * 8 * 8}
STATE_SIZES |= {"lion_s": 2 * 8 * 9, "lion_d": 2 * 8 * 9}
STATE_SIZES |= {"retnet": 2 * 8 * 16, "gla": 2 * 4 * 8, "hgrn2": 2 * 8 * 8, "delta_net": 2 * 8 * 8, "mamba": 32 * 16}
STATE_SIZES |= {"mamba2": 2 * 64 * 16, "hydra": 2 * 64 * 16, "rg_lru": 16, "min_gru": 24, "min_lstm": 24, "hyena": None}
STATE_SIZES |= {"based": 2 * 273 * 9, "s4d_lin": 16 * 64, "s5": 128, "lru": 2 * 128, "mega": 16 * 16, "conv": None}


def test_benchmark_reports_recurrent_state_sizes():
    assert {name: workloads.layer_sizes(config(name, *CHECK_SIZES))["state"] for name in STATE_SIZES} == STATE_SIZES


def test_mamba_initial_steps_and_decays_span_their_ranges():
    """A state remembers 1 / (Δ A) tokens, so the smallest step and the smallest decay give the longest horizon."""
    mamba = build_mixer("mamba", step_min=1e-5, decay_min=0.5, decay_max=8.0, spacing="log")
    steps = torch.nn.functional.softplus(mamba.step_bias)
    assert 1e-5 * (1 - 1e-6) <= steps.min() < 1e-4 and steps.max() <= 0.1
    torch.testing.assert_close(mamba.log_A[0].exp(), torch.logspace(-1, 3, 16, base=2.0).double())
    torch.testing.assert_close(build_mixer("mamba").log_A[0].exp(), torch.arange(1.0, 17).double())
