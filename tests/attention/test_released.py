"""Mechanisms against outputs of the authors' code, for inputs and parameters that are sines of their index.

`released.json` holds OpenNLPLab/cosFormer 8e12da1 (`CosformerAttention`), HazyResearch/lolcats 375df84 (`FeatureMap`,
`quadratic_attention`), vpuri3/FLARE.py 4e05378 (`FLARE` with linear projections), BrightQin/DBA-Time-Series 1b9dcd6
(`dba_attention`, two layers), google/flaxformer 399ea3a (`OneDimHierarchicalAttention` without projections and position
bias), pkuzengqi/Skyformer 1a677cb (with given draws) and HazyResearch/safari 02220c6
(`LongConv` before its activation). `tests/ops/recurrent_waves.json` holds recurrent layers and operators, in float64.
"""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support.features import set_parameters
from torch import Tensor, nn

from lra.attention.base import Sizes
from lra.attention.based import Based
from lra.attention.cosformer import CosFormer
from lra.attention.dba import DBA
from lra.attention.flare import FLARE
from lra.attention.h_transformer_1d import HTransformer1D
from lra.attention.hedgehog import Hedgehog
from lra.attention.hyena import Hyena, HyenaFilter
from lra.attention.long_conv import LongConv
from lra.attention.mamba import Mamba
from lra.attention.mamba2 import Hydra, Mamba2
from lra.attention.min_gru import MinGRU, MinLSTM
from lra.attention.retnet import RetNet
from lra.attention.rg_lru import RGLRU
from lra.attention.skyformer import Skyformer
from lra.ops import recurrence
from lra.ops.pinv import cubic

TESTS = Path(__file__).parents[1]
RECURRENT = json.loads((TESTS / "ops/recurrent_waves.json").read_text())
RELEASED = json.loads((TESTS / "attention/released.json").read_text()) | RECURRENT["outputs"]
N, H, L, D = 2, 2, 7, 4
SIZES = Sizes(heads=H, head_dim=D, value_dim=D, length=L)
SUFFIX = torch.arange(L) < torch.tensor([L, 4])[:, None]


def waves(*shape: int, seed: int) -> Tensor:
    index = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return torch.sin(index * (1 + seed / 7) ** 2 + seed).view(shape)


def qkv(seed: int = 1, width: int = D) -> list[Tensor]:
    return [waves(N, H, L, width, seed=seed + i) for i in range(3)]


def released_parameters(shapes: dict[str, tuple[int, ...]], seed: int = 10) -> dict[str, Tensor]:
    """Parameters of a released module, by their names in the released code."""
    return {name: 0.3 * waves(*shapes[name], seed=seed + i) for i, name in enumerate(sorted(shapes))}


def linear_shapes(num_outputs: dict[str, int], num_inputs: int) -> dict[str, tuple[int, ...]]:
    weights = {f"{name}.weight": (n, num_inputs) for name, n in num_outputs.items()}
    return weights | {f"{name}.bias": (n,) for name, n in num_outputs.items()}


def released(case: str) -> Tensor:
    return torch.tensor(RELEASED[case], dtype=torch.float64)


def compare(ours: Tensor, case: str, rtol: float = 1e-10, atol: float = 1e-12) -> None:
    torch.testing.assert_close(ours.detach().flatten(), released(case), rtol=rtol, atol=atol)


def copy_linear(layer: nn.Linear, parameters: dict[str, Tensor], *names: str) -> None:
    """Copy the stacked parameters of released linear layers into one linear layer."""
    with torch.no_grad():
        for part, ours in layer.named_parameters():
            ours.copy_(torch.cat([parameters[f"{name}.{part}"] for name in names]))


def test_cosformer_and_hedgehog_match_released():
    compare(CosFormer(SIZES)(*qkv()), "cosformer")
    weight = torch.stack([waves(H, D, D, seed=4), waves(H, D, D, seed=5)])
    compare(set_parameters(Hedgehog(SIZES).double(), weight=weight)(*qkv()), "hedgehog")


def test_h_transformer_1d_matches_released():
    """Keys are the values too. The released code adds its levels in float32."""
    q, k = (waves(N, H, 8, D, seed=seed) for seed in (1, 2))
    attention = HTransformer1D(replace(SIZES, length=8), block=2, neighbours="both")
    compare(attention(q, k, k), "h_transformer_1d", rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("case", "scale", "mask"), [("flare", "one", None), ("flare_masked", "one", SUFFIX), ("flare_sqrt", "sqrt", None)]
)
def test_flare_matches_released(case, scale, mask):
    """With a mask, the released module was run on each sequence at its own length."""
    d, latents = H * D, 3
    shapes = linear_shapes({"k_proj.fc": d, "v_proj.fc": d, "out_proj": d}, d) | {"latent_q": (d, latents)}
    p = released_parameters(shapes, seed=6)
    x = waves(N, L, d, seed=7)
    flare = FLARE(SIZES, latents=latents, scale=scale).double()
    set_parameters(flare, latents=p["latent_q"].view(H, latents, D))
    k, v = (x + F.linear(x, p[f"{side}_proj.fc.weight"], p[f"{side}_proj.fc.bias"]) for side in "kv")
    k, v = (t.unflatten(-1, (H, D)).transpose(1, 2) for t in (k, v))
    out = flare(k, k, v, mask).transpose(1, 2).flatten(2)
    compare(out if mask is None else out[mask], case)


@pytest.mark.parametrize(("case", "mask"), [("dba", None), ("dba_masked", SUFFIX)])
def test_dba_matches_released(case, mask):
    """The attention of two layers on the same tokens. Released layers get normalised tokens; ours normalise them."""
    d, latents, width = 12, 5, 24
    sizes = Sizes(heads=H, head_dim=d // H, value_dim=d // H, length=L)
    x = waves(N, L, d, seed=8)
    num_outputs = {"pq_proj": width, "pk_proj": width, "pv_proj": d, "q_proj": width, "k_proj": width, "v_proj": d}
    shapes = linear_shapes(num_outputs | {"q_len_proj": H * latents, "out_proj": d}, d)
    shapes |= {"self_attn_layer_norm1.weight": (d,), "self_attn_layer_norm1.bias": (d,)}
    memory, outs = waves(latents, d, seed=9).expand(N, -1, -1), []
    for layer in range(2):
        p = released_parameters(shapes, seed=10 + 20 * layer)
        dba = DBA(sizes, dim=d, hidden=4, first=False, latents=latents, width=width).double()
        copy_linear(dba.compress_query, p, "pq_proj")
        copy_linear(dba.compress_context, p, "pk_proj", "pv_proj")
        copy_linear(dba.latent_query, p, "q_proj")
        copy_linear(dba.latent_context, p, "k_proj", "v_proj")
        copy_linear(dba.expand, p, "q_len_proj")
        copy_linear(dba.output, p, "out_proj")
        copy_linear(dba.latent_norm, p, "self_attn_layer_norm1")
        # Our feed-forward layer outputs zero, because the released attention has none.
        nn.init.zeros_(dba.mlp[3].weight)
        nn.init.zeros_(dba.mlp[3].bias)
        out, memory = dba(x, mask, memory)
        outs.append(out - x)
    compare(torch.stack(outs), case)


@pytest.mark.parametrize(("case", "mask"), [("skyformer", None), ("skyformer_masked", SUFFIX)])
def test_skyformer_matches_released(case, mask):
    """Compares the first four features of each head. The released inverse starts from the largest sum of the batch."""
    # The released code scales queries and keys by 32^-1/4 for every head size.
    width, samples = 32, 3
    sizes, pinv = replace(SIZES, head_dim=width, value_dim=width), partial(cubic, steps=6, init="batch")
    skyformer = Skyformer(sizes, samples=samples, pinv=pinv).double()
    skyformer.draw.copy_((waves(2 * samples, seed=14) + 1) / 2 * 0.999)
    ours = skyformer.eval()(*qkv(11, width), mask)[..., :4].transpose(1, 2)  # (N,L,H,4)
    theirs = released(case).view(N, H, L, 4).transpose(1, 2)
    is_real = slice(None) if mask is None else mask
    torch.testing.assert_close(ours[is_real].detach(), theirs[is_real], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("case", "both"), [("long_conv", False), ("long_conv_both", True)])
def test_long_conv_matches_released(case, both):
    conv = LongConv(SIZES, dim=3, bidirectional=both, squash=0.3).double()
    set_parameters(conv, weights=waves(1 + both, 3, L, seed=15), skip=waves(3, seed=16))
    compare(conv(waves(N, L, 3, seed=17)), case)


# Parameter names in the released code -> our names.
MAMBA = {"A_log": "log_A", "D": "D", "in_proj.weight": "inputs.weight", "out_proj.weight": "output.weight"}
MAMBA |= {"conv1d.weight": "conv.conv.weight", "conv1d.bias": "conv.conv.bias"}
SELECTIVE = {"dt_proj.bias": "step_bias", "dt_proj.weight": "step.weight", "x_proj.weight": "select.weight"}
SSD = {"dt_bias": "step_bias", "norm.weight": "norm.weight"}
HYENA = {"filter_fn.bias": "D", "filter_fn.implicit_filter.1.freq": "filters.0.frequency"}
HYENA |= {"filter_fn.implicit_filter.6.weight": "filters.0.last.weight"}
for part in ("weight", "bias"):
    HYENA |= {f"filter_fn.implicit_filter.{2 * i}.{part}": f"filters.0.layers.{i}.{part}" for i in range(3)}
    HYENA |= {f"short_filter.{part}": f"conv.conv.{part}", f"in_proj.{part}": f"inputs.{part}"}
    HYENA |= {f"out_proj.{part}": f"output.{part}"}
HIDDEN = {"to_out.weight": "output.weight"}
LAYERS = {
    "mamba_module": (Mamba, {"states": 4}, MAMBA | SELECTIVE),
    "mamba2_module": (Mamba2, {"states": 4}, MAMBA | SSD),
    "hydra_module": (Hydra, {"states": 4, "causal": False}, MAMBA | SSD | {"fc_D.weight": "diagonal.weight"}),
    "hyena_module": (Hyena, {"hidden": 8}, HYENA),
    "mingru_module": (MinGRU, {}, HIDDEN | {"to_hidden_and_gate.weight": "inputs.weight"}),
    "minlstm_module": (MinLSTM, {}, HIDDEN | {"to_hidden_and_f_i_gate.weight": "inputs.weight"}),
}


@pytest.mark.parametrize("case", LAYERS)
def test_recurrent_layer_matches_released(case, monkeypatch):
    kind, options, names = LAYERS[case]
    width = 6 if case == "hyena_module" else 8
    sizes = Sizes(heads=4, head_dim=width // 2, value_dim=width // 2, length=L)
    mixer = kind(sizes, dim=width, **{"causal": True, **options}).double()
    parameters = released_parameters(RECURRENT["parameter_shapes"][case])
    ours = {names[name]: value for name, value in parameters.items() if name in names}
    shapes = {name: parameter.shape for name, parameter in mixer.named_parameters()}
    assert set(ours) == set(shapes)
    mixer.load_state_dict({name: value.reshape(shapes[name]) for name, value in ours.items()})
    # In the released layer the positional encoding of the lags is a parameter.
    if case == "hyena_module":
        monkeypatch.setattr(HyenaFilter, "encode", lambda *_: parameters["filter_fn.pos_emb.z"][0])
    compare(mixer(waves(N, L, width, seed=1)), case, atol=1e-10)


def test_rg_lru_matches_released():
    p = released_parameters(RECURRENT["parameter_shapes"]["rglru_module"])
    mixer = RGLRU(SIZES, dim=8, causal=True).double()
    weights = torch.stack([p["a_gate.w"], p["input_gate.w"]])
    biases = torch.stack([p["a_gate.b"], p["input_gate.b"]])
    mixer.load_state_dict({"gate_weight": weights, "gate_bias": biases, "decay": p["a_param"]}, strict=False)
    compare(mixer.recurrence(waves(N, L, 8, seed=1), None), "rglru_module", atol=1e-10)


def test_based_matches_released():
    """The released code adds 1e-6 to the denominator, which is at least 1/2: a relative error up to 2e-6."""
    compare(Based(SIZES, dim=8, causal=True, features=4).attend(*qkv(), None), "based", rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("case", ["simple_gla", "gla", "delta_rule", "gated_delta_rule", "selective_scan", "retention"])
def test_recurrence_operator_matches_released(case):
    q, k, v = qkv()
    gate = F.logsigmoid(3 * waves(N, H, L, seed=4))
    if case == "selective_scan":
        # The released scan takes channels before time and includes softplus(delta + bias), D u and a gate silu(z).
        u, delta, z = (waves(N, 6, L, seed=seed).mT for seed in (1, 2, 7))
        B, C = (waves(N, 4, L, seed=seed).mT for seed in (4, 5))
        scan = recurrence.selective_scan(u, F.softplus(delta + waves(6, seed=8)), -waves(6, 4, seed=3).exp(), B, C)
        compare(((scan + waves(6, seed=6) * u) * F.silu(z)).mT, case, 1e-12)
    elif case == "simple_gla":
        compare(recurrence.scalar_decay_attention(q, k, v, gate), case, 1e-12)
    elif case == "gla":
        compare(recurrence.channel_decay_attention(q, k, v, F.logsigmoid(3 * waves(N, H, L, D, seed=5))), case, 1e-12)
    elif case == "retention":
        # The decays are stored in float32: log γ has a relative error of 2^-24, multiplied by up to six tokens.
        decays = RetNet(SIZES, dim=8, decays="published").log_decay.double()[None, :, None].expand(N, H, L)
        compare(recurrence.scalar_decay_attention(q, k, v, decays), case, rtol=0, atol=1e-7)
    else:
        beta = waves(N, H, L, seed=6).sigmoid()
        gate = gate if case == "gated_delta_rule" else None
        compare(recurrence.delta_rule_attention(q, F.normalize(k, dim=-1), v, beta, gate), case, 1e-12)
