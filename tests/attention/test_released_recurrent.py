"""Recurrent mechanisms against the outputs of their released code, ``tests/ops/recurrent_waves.json``.

The outputs were computed in float64 on x = waves(N,L,width; 1). Parameter number i, in the sorted order of the released
names, is 0.3 waves(shape; 10 + i). The tables map released names to ours.
"""

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from lra.attention import based
from lra.attention.base import Sizes
from lra.attention.hyena import Hyena, HyenaFilter
from lra.attention.lion import LionD, LionS
from lra.attention.mamba import Mamba
from lra.attention.mamba2 import Hydra, Mamba2
from lra.attention.min_gru import MinGRU, MinLSTM
from lra.attention.retnet import RetNet
from lra.attention.rg_lru import RGLRU
from lra.ops.scalar_decay import scalar_decay_attention

DATA = json.loads((Path(__file__).parents[1] / "ops" / "recurrent_waves.json").read_text())

CONV = {"conv1d.weight": "conv.conv.weight", "conv1d.bias": "conv.conv.bias"}
MAMBA = {"A_log": "log_A", "D": "D", "in_proj.weight": "inputs.weight", "out_proj.weight": "output.weight", **CONV}
SELECTIVE = {"dt_proj.bias": "step_bias", "dt_proj.weight": "step.weight", "x_proj.weight": "select.weight"}
SSD = {"dt_bias": "step_bias", "norm.weight": "norm.weight"}
PARTS = ("weight", "bias")
HYENA = {"filter_fn.bias": "D", "filter_fn.implicit_filter.1.freq": "filters.0.frequency"}
HYENA |= {"filter_fn.implicit_filter.6.weight": "filters.0.last.weight"}
for part in PARTS:
    HYENA |= {f"filter_fn.implicit_filter.{2 * i}.{part}": f"filters.0.layers.{i}.{part}" for i in range(3)}
    HYENA |= {f"short_filter.{part}": f"conv.conv.{part}", f"in_proj.{part}": f"inputs.{part}"}
    HYENA |= {f"out_proj.{part}": f"output.{part}"}
HIDDEN = {"to_out.weight": "output.weight"}
CASES = {
    "mamba_module": (Mamba, {"states": 4}, MAMBA | SELECTIVE),
    "mamba2_module": (Mamba2, {"states": 4}, MAMBA | SSD),
    "hydra_module": (Hydra, {"states": 4, "causal": False}, MAMBA | SSD | {"fc_D.weight": "diagonal.weight"}),
    "hyena_module": (Hyena, {"hidden": 8}, HYENA),
    "mingru_module": (MinGRU, {}, HIDDEN | {"to_hidden_and_gate.weight": "inputs.weight"}),
    "minlstm_module": (MinLSTM, {}, HIDDEN | {"to_hidden_and_f_i_gate.weight": "inputs.weight"}),
}


def waves(shape, seed):
    index = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return torch.sin(index * (1 + seed / 7) ** 2 + seed).reshape(shape)


def released(case):
    return torch.tensor(DATA["outputs"][case], dtype=torch.float64)


def released_parameters(case):
    shapes = DATA["parameter_shapes"][case]
    return {name: 0.3 * waves(shapes[name], 10 + i) for i, name in enumerate(sorted(shapes))}


@pytest.mark.parametrize("case", CASES)
def test_a_layer_equals_the_released_one(case, monkeypatch):
    kind, options, names = CASES[case]
    width = 6 if case == "hyena_module" else 8
    sizes = Sizes(heads=4, head_dim=width // 2, value_dim=width // 2, length=7)
    mixer = kind(sizes, dim=width, **{"causal": True, **options}).double()
    given = released_parameters(case)
    ours = {names[name]: value for name, value in given.items() if name in names}
    shapes = {name: parameter.shape for name, parameter in mixer.named_parameters()}
    assert set(ours) == set(shapes)
    mixer.load_state_dict({name: value.reshape(shapes[name]) for name, value in ours.items()})
    if case == "hyena_module":  # the released layer trains the encoding of the lags
        monkeypatch.setattr(HyenaFilter, "encode", lambda *_: given["filter_fn.pos_emb.z"][0])
    result = mixer(waves((2, 7, width), 1))
    torch.testing.assert_close(result.flatten(), released(case), rtol=1e-10, atol=1e-10)


def test_the_rg_lru_equals_the_released_one():
    given = released_parameters("rglru_module")
    mixer = RGLRU(Sizes(heads=2, head_dim=4, value_dim=4, length=7), dim=8, causal=True).double()
    weights = torch.stack([given["a_gate.w"], given["input_gate.w"]])
    biases = torch.stack([given["a_gate.b"], given["input_gate.b"]])
    mixer.load_state_dict({"gate_weight": weights, "gate_bias": biases, "decay": given["a_param"]}, strict=False)
    result = mixer.recurrence(waves((2, 7, 8), 1), None)
    torch.testing.assert_close(result.flatten(), released("rglru_module"), rtol=1e-10, atol=1e-10)


def test_retention_has_the_released_decays():
    q, k, v = (waves((2, 2, 7, 4), seed) for seed in (1, 2, 3))
    layer = RetNet(Sizes(heads=2, head_dim=4, value_dim=4, length=7), dim=8, decays="published")
    log_decay = layer.log_decay.double()[None, :, None].expand(2, 2, 7)
    result = scalar_decay_attention(q, k, v, log_decay)
    # The decays are stored in float32: log γ is off by 2^-24 of itself, at six tokens.
    torch.testing.assert_close(result.flatten(), released("retention"), rtol=0, atol=1e-7)


def test_based_equals_the_released_one():
    q, k, v = (waves((2, 2, 7, 4), seed) for seed in (1, 2, 3))
    layer = based.Based(Sizes(heads=2, head_dim=4, value_dim=4, length=7), dim=8, causal=True, features=4)
    # The released code adds 1e-6 to the denominator, which is at least 1/2.
    torch.testing.assert_close(layer.attend(q, k, v, None).flatten(), released("based"), rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("causal", [False, True])
def test_the_taylor_features_are_the_polynomial(causal):
    q, k, v = (waves((2, 2, 9, 4), seed) for seed in (1, 2, 3))
    score = q @ k.mT / 2
    weights = 1 + score + score.square() / 2
    if causal:
        weights = weights.tril()
    layer = based.Based(Sizes(heads=2, head_dim=4, value_dim=4, length=9), dim=8, causal=causal, features=4)
    torch.testing.assert_close(layer.attend(q, k, v, None), F.normalize(weights, p=1, dim=-1) @ v)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", [LionS, LionD])
def test_lion_is_full_attention_under_its_mask(kind, causal):
    """M_ij is the product of the decays of j to i - 1 below the diagonal and of i + 1 to j above it (eq. 9)."""
    length = 9
    mixer = kind(Sizes(heads=2, head_dim=4, value_dim=4, length=length), dim=8, causal=causal).double()
    x = waves((2, length, 8), 1)
    q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in mixer.inputs(x).chunk(3, -1))
    phi_q, phi_k = (F.normalize(F.silu(part) + 0.5, dim=-1) for part in (q, k))
    log_decay = mixer.log_decay(x)
    mask = torch.zeros(2, 2, length, length, dtype=torch.float64)
    for i in range(length):
        for j in range(i + 1 if causal else length):
            between = log_decay[:, :, j:i] if j <= i else log_decay[:, :, i + 1 : j + 1]
            mask[:, :, i, j] = between.sum(-1).exp()
    weights = (phi_q @ phi_k.mT) * mask
    exact = (weights / weights.sum(-1, keepdim=True)) @ v
    torch.testing.assert_close(mixer(x), mixer.output(exact.transpose(1, 2).flatten(2)))
