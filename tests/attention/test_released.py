"""Mechanisms against outputs of the authors' code, for inputs and parameters that are sines of their index.

`released.json` holds OpenNLPLab/cosFormer 8e12da1 (`CosformerAttention`), HazyResearch/lolcats 375df84 (`FeatureMap`,
`quadratic_attention`), vpuri3/FLARE.py 4e05378 (`FLARE` with linear projections), BrightQin/DBA-Time-Series 1b9dcd6
(`dba_attention`, two layers), google/flaxformer 399ea3a (`OneDimHierarchicalAttention` without projections and position
bias), pkuzengqi/Skyformer 1a677cb (with given draws), HazyResearch/safari 02220c6 (`LongConv` before its activation),
NVIDIA/transformer-ls 1527c5c (`AttentionLS`), XuezheMax/fairseq-apollo 3644d20 (`LunaSentenceEncoderLayer`, pre-norm),
facebookresearch/mega aeaa4b4 (`MegaSentenceEncoderLayer`), Espritdelescalier/Nystromformer 6f5766a (`CURAttention`),
mlpen/Nystromformer 5689313 (`NystromAttention`, `LinearAttention`, `LinformerAttention`), RuslanKhalitov/
SparseFactorization d8ade2e (`PSFNet` before its head), fudan-zvg/SOFT d3febc3 (`SoftmaxFreeAttentionKernel`,
`SoftmaxFreeNormAttentionKernel`) and google-research/long-range-arena cd31e5c (`LongformerAttention`,
`SparseAttention`), then recurrent layers and operators in float64, and the shapes of their parameters.
"""

import itertools
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
from lra.attention.cur import CUR
from lra.attention.dba import DBA
from lra.attention.flare import FLARE
from lra.attention.h_transformer_1d import HTransformer1D
from lra.attention.hedgehog import Hedgehog
from lra.attention.hyena import Hyena, HyenaFilter
from lra.attention.linear import Linear
from lra.attention.linformer import Linformer
from lra.attention.long_conv import LongConv
from lra.attention.longformer import Longformer
from lra.attention.luna import Luna
from lra.attention.mamba import Mamba
from lra.attention.mamba2 import Hydra, Mamba2
from lra.attention.min_gru import MinGRU, MinLSTM
from lra.attention.nystrom import NystromOriginal
from lra.attention.psf import PSF
from lra.attention.retnet import RetNet
from lra.attention.rg_lru import RGLRU
from lra.attention.skyformer import Skyformer
from lra.attention.soft import Soft
from lra.attention.softmax import Softmax
from lra.attention.sparse import Sparse
from lra.attention.transformer_ls import TransformerLS
from lra.model.mega import Mega
from lra.ops import recurrence
from lra.ops.newton import newton
from lra.ops.pinv import cubic

RELEASED = json.loads(Path(__file__).with_name("released.json").read_text())
N, H, L, D = 2, 2, 7, 4
SIZES = Sizes(heads=H, head_dim=D, value_dim=D, length=L)
SUFFIX = torch.arange(L) < torch.tensor([L, 4])[:, None]
SUFFIX_8 = torch.arange(8) < torch.tensor([8, 5])[:, None]
DIM, EIGHT = H * D, replace(SIZES, length=8)


def waves(*shape: int, seed: int) -> Tensor:
    index = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return torch.sin(index * (1 + seed / 7) ** 2 + seed).view(shape)


def qkv(seed: int = 1, width: int = D, length: int = L) -> list[Tensor]:
    return [waves(N, H, length, width, seed=seed + i) for i in range(3)]


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


def compare_real(ours: Tensor, case: str, mask: Tensor | None = None) -> None:
    """Compare outputs (N,L,d) or (N,H,L,D); with a mask, released.json has the outputs of the real tokens."""
    rows = ours.transpose(1, 2) if ours.dim() == 4 and mask is not None else ours
    compare(rows if mask is None else rows[mask], case)


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
    q, k, _ = qkv(length=8)
    attention = HTransformer1D(EIGHT, block=2, neighbours="both")
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


@pytest.mark.parametrize(("case", "mask"), [("transformer_ls", None), ("transformer_ls_masked", SUFFIX_8)])
def test_transformer_ls_matches_released(case, mask):
    """The bias of the dynamic projection cancels in its softmax over the tokens."""
    shapes = linear_shapes({"W_q": DIM, "W_k": DIM, "W_v": DIM, "W_o": DIM, "dconv_fc": 3 * H}, DIM)
    shapes |= {f"dual_ln_{name}.{part}": (DIM,) for name in "ls" for part in ("weight", "bias")}
    p = released_parameters(shapes | {"conv.weight": (H, 1, 3, 1)})
    mixer = TransformerLS(EIGHT, dim=DIM, rank=3, window=4, kernel=3).double()
    copy_linear(mixer.inputs, p, "W_q", "W_k", "W_v")
    names = {"output": "W_o", "token_norm": "dual_ln_l", "compressed_norm": "dual_ln_s"}
    for ours, theirs in names.items():
        copy_linear(mixer.get_submodule(ours), p, theirs)
    set_parameters(mixer.project, weight=p["dconv_fc.weight"])
    set_parameters(mixer.conv, weight=p["conv.weight"])
    compare_real(mixer(waves(N, 8, DIM, seed=1), mask), case, mask)


@pytest.mark.parametrize("case", ["luna", "luna_masked", "luna_untied", "luna_untied_masked"])
def test_luna_matches_released(case):
    """Two layers. The released layers are pre-norm, as an option allows."""
    is_tied, hidden, mask = "untied" not in case, 5, SUFFIX if case.endswith("_masked") else None
    # Our parameter names -> names in the released code.
    names = {"pack_query": ["pq_proj"], "unpack_query": ["q_proj"], "output": ["out_proj"]}
    names |= {"pack_context": ["pc_proj"] if is_tied else ["pk_proj", "pv_proj"]}
    names |= {"unpack_context": ["c_proj"] if is_tied else ["k_proj", "v_proj"]}
    names = {ours: [f"self_attn.{name}" for name in theirs] for ours, theirs in names.items()}
    shapes = linear_shapes(dict.fromkeys(itertools.chain(*names.values()), DIM) | {"fc1": hidden}, DIM)
    norms = {"token_norm": "self_attn_layer_norm", "packed_norm": "self_atten_proj_layer_norm"}
    norms["mlp_norm"] = "final_layer_norm"
    shapes |= {f"{name}.{part}": (DIM,) for name in norms.values() for part in ("weight", "bias")}
    shapes |= linear_shapes({"fc2": DIM}, hidden)
    names |= {"mlp.0": ["fc1"], "mlp.3": ["fc2"]} | {ours: [theirs] for ours, theirs in norms.items()}
    out, memory = waves(N, L, DIM, seed=1), waves(3, DIM, seed=2).expand(N, -1, -1)
    for layer in range(2):
        p = released_parameters(shapes, seed=10 + 20 * layer)
        luna = Luna(SIZES, dim=DIM, hidden=hidden, first=False, rows=3, tie_kv=is_tied).double().eval()
        for ours, theirs in names.items():
            copy_linear(luna.get_submodule(ours), p, *theirs)
        out, memory = luna(out, mask, memory)
    compare_real(out, case, mask)


MEGA = {
    "mega": ("softmax", {"norm": "layer", "truncation": None}, SUFFIX_8),
    "mega_laplace": ("laplace", {"norm": "scale", "truncation": None}, SUFFIX_8),
    "mega_chunk": ("laplace", {"norm": "rms", "truncation": 5, "chunk": 4, "prenorm": False}, None),
}
# Our parameter names -> names in the released code.
MEGA_KEYS = {"values": "v_proj", "gates": "mx_proj", "output": "h_proj", "norm": "norm.norm"}
MEGA_KEYS |= {"norm.scale": "norm.norm.scalar", "bias.weight": "rel_pos_bias.rel_pos_bias"}
MEGA_KEYS |= {"qk_scale": "gamma", "qk_shift": "beta"}
MEGA_KEYS |= {f"ema.{name}": f"move.{name}" for name in ("delta", "alpha", "beta", "gamma", "omega")}
MEGA_KEYS = {ours: f"mega_layer.{theirs}" for ours, theirs in MEGA_KEYS.items()}
MEGA_KEYS |= {"mlp.0": "nffn.fc1", "mlp.2": "nffn.fc2", "mlp_norm": "nffn.norm.norm"}
MEGA_KEYS |= {"mlp_norm.scale": "nffn.norm.norm.scalar"}


@pytest.mark.parametrize("case", MEGA)
def test_mega_matches_released(case):
    """The constants of the Laplace function, rounded to six digits in the released code, are exact here."""
    weights, options, mask = MEGA[case]
    sizes = {"dim": 6, "hidden": 5, "dropout": 0.1, "length": 8, "z": 4, "ndim": 3}
    mega = Mega(partial(Softmax, weights=weights), **sizes, **options).double().eval()
    names = {}
    for ours in mega.state_dict():
        stem, _, leaf = ours.rpartition(".")
        names[ours] = MEGA_KEYS.get(ours) or f"{MEGA_KEYS[stem]}.{leaf}"
    # Waves depend on the number of entries only, not on the shape.
    shapes = {names[ours]: tuple(parameter.shape) for ours, parameter in mega.named_parameters()}
    p = released_parameters(shapes)
    mega.load_state_dict({ours: p[theirs] for ours, theirs in names.items()})
    compare_real(mega(waves(N, 8, 6, seed=1), mask)[0], case, mask)


CUR_CASES = {
    "cur_abs": ({"score": "abs"}, SUFFIX),
    "cur_sum": ({"score": "sum", "pairing": "same_k", "class_token": True}, SUFFIX),
    "cur_embed": ({"score": "embed", "pairing": "swapped", "copy_rv": False}, None),
    "cur_step": ({"score": "step", "count": 4}, None),
}


@pytest.mark.parametrize("case", CUR_CASES)
@pytest.mark.parametrize("impl", ["eager", "sdpa"])
def test_cur_matches_released(case, impl):
    """The count is at most the number of real tokens, and a divisor of the length for score=step."""
    options, mask = CUR_CASES[case]
    sizes = EIGHT if case == "cur_step" else SIZES
    attention = CUR(sizes, **({"count": 3} | options), pinv=partial(cubic, steps=4), impl=impl)
    compare_real(attention(*qkv(length=sizes.length), mask), case, mask)


@pytest.mark.parametrize(("case", "mask"), [("nystrom", None), ("nystrom_masked", SUFFIX_8)])
def test_nystrom_original_matches_released(case, mask):
    attention = NystromOriginal(EIGHT, landmarks=2, kernel=3, pinv=partial(cubic, steps=6, init="batch")).double()
    set_parameters(attention.conv, weight=waves(H, 1, 3, 1, seed=5))
    compare_real(attention(*qkv(length=8), mask), case, mask)


@pytest.mark.parametrize("masked", ["", "_masked"])
def test_linear_and_linformer_match_released(masked):
    mask = SUFFIX if masked else None
    compare_real(Linear(SIZES, normalise=False)(*qkv(), mask), f"linear_unnormalised{masked}", mask)
    linformer = set_parameters(Linformer(SIZES, rank=3).double(), compress_k=waves(H, 3, L, seed=4))
    compare_real(linformer(*qkv(), mask), f"linformer{masked}", mask)


@pytest.mark.parametrize("case", ["psf", "psf_residuals"])
def test_psf_matches_released(case):
    shapes = linear_shapes({"g.network.0": 4} | {f"fs.{m}.network.0": 5 for m in range(3)}, 6)
    shapes |= linear_shapes({"g.network.2": 3}, 4) | linear_shapes({f"fs.{m}.network.2": 4 for m in range(3)}, 5)
    p = {name: 4 * value for name, value in released_parameters(shapes).items()}
    options = {"hidden": 5, "value_hidden": 4, "channels": 3, "project": False, "ring": "row"}
    psf = PSF(SIZES, dim=6, residuals=case == "psf_residuals", **options).double().eval()
    for layer in (0, 2):
        copy_linear(psf.values[0][layer], p, f"g.network.{layer}")
        for m, mlp in enumerate(psf.weights):
            copy_linear(mlp[layer], p, f"fs.{m}.network.{layer}")
    compare_real(psf(waves(N, L, 6, seed=1), SUFFIX), case)


@pytest.mark.parametrize(("case", "heads"), [("soft", 2), ("softpp", 1)])
def test_soft_matches_released(case, heads):
    """Released windows are squares of 2 x 2 pixels. SOFT++ has one starting value for all heads, so one head here."""
    sizes, normalise = Sizes(heads=heads, head_dim=D, value_dim=D, length=16), case == "softpp"
    init, ridge = ("softpp", 0.0) if normalise else ("soft", 0.01)
    pinv = partial(newton, steps=6, init=init, ridge=ridge)
    soft = Soft(sizes, sample="conv", window=4, normalise=normalise, pinv=pinv).double()
    shapes = {"Qlandmark_op.weight": (D, D, 2, 2), "Qnorm_act.0.weight": (D,), "Qnorm_act.0.bias": (D,)}
    p = released_parameters(shapes)
    set_parameters(soft.conv[0], weight=p["Qlandmark_op.weight"].permute(0, 2, 3, 1).flatten(1))
    copy_linear(soft.conv[1], p, "Qnorm_act.0")
    by_window = torch.arange(16).view(2, 2, 2, 2).transpose(1, 2).flatten()
    q, v = (waves(1, heads, 16, D, seed=seed)[:, :, by_window] for seed in (1, 2))
    compare_real(soft(q, q, v)[:, :, by_window.argsort()], case)


BANDS = {
    "longformer": partial(Longformer, window=4, global_tokens=1),
    "sparse_fixed": partial(Sparse, pattern="fixed", block=3, summary=1, causal=True),
    "sparse_strided": partial(Sparse, stride=2, causal=True),
}


@pytest.mark.parametrize("case", BANDS)
@pytest.mark.parametrize("masked", ["", "_masked"])
def test_bands_match_official(case, masked):
    """The official Long Range Arena: global queries of Longformer with the same projections, no class token."""
    mask = SUFFIX if masked else None
    compare_real(BANDS[case](SIZES)(*qkv(), mask), f"{case}{masked}", mask)


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
    parameters = released_parameters(RELEASED["parameter_shapes"][case])
    ours = {names[name]: value for name, value in parameters.items() if name in names}
    shapes = {name: parameter.shape for name, parameter in mixer.named_parameters()}
    assert set(ours) == set(shapes)
    mixer.load_state_dict({name: value.reshape(shapes[name]) for name, value in ours.items()})
    # In the released layer the positional encoding of the lags is a parameter.
    if case == "hyena_module":
        monkeypatch.setattr(HyenaFilter, "encode", lambda *_: parameters["filter_fn.pos_emb.z"][0])
    compare(mixer(waves(N, L, width, seed=1)), case, atol=1e-10)


def test_rg_lru_matches_released():
    p = released_parameters(RELEASED["parameter_shapes"]["rglru_module"])
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
