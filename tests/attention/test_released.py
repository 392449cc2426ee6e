"""Outputs of the authors' modules, run as released, on inputs and parameters that are sines of their index.

`released.json` has one list of numbers a case, from OpenNLPLab/cosFormer 8e12da1 (`CosformerAttention`),
HazyResearch/lolcats 375df84 (`FeatureMap`, `quadratic_attention`), vpuri3/FLARE.py 4e05378 (`FLARE` with linear
projections), BrightQin/DBA-Time-Series 1b9dcd6 (`dba_attention`, two layers), pkuzengqi/Skyformer 1a677cb (`Skyformer`
with given draws) and HazyResearch/safari 02220c6 (`LongConv` before its activation).
"""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra.attention.base import Sizes
from lra.attention.cosformer import CosFormer
from lra.attention.dba import DBA
from lra.attention.flare import FLARE
from lra.attention.hedgehog import Hedgehog
from lra.attention.long_conv import LongConv
from lra.attention.skyformer import Skyformer
from lra.ops.pinv import cubic

RELEASED = json.loads((Path(__file__).parent / "released.json").read_text())
N, H, L, D = 2, 2, 7, 4
SIZES = Sizes(heads=H, head_dim=D, value_dim=D, length=L)
SUFFIX = torch.arange(L) < torch.tensor([L, 4])[:, None]


def waves(*shape: int, seed: int) -> Tensor:
    index = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return torch.sin(index * (1 + seed / 7) ** 2 + seed).view(shape)


def qkv(seed: int = 1, width: int = D) -> list[Tensor]:
    return [waves(N, H, L, width, seed=seed + i) for i in range(3)]


def given(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    """Parameters of a released module, by their names there."""
    return {name: 0.3 * waves(*shapes[name], seed=seed + i) for i, name in enumerate(sorted(shapes))}


def linear(layer: nn.Linear, *parts: tuple[Tensor, Tensor]) -> None:
    with torch.no_grad():
        layer.weight.copy_(torch.cat([weight for weight, _ in parts]))
        layer.bias.copy_(torch.cat([bias for _, bias in parts]))


def compare(ours: Tensor, case: str) -> None:
    theirs = torch.tensor(RELEASED[case], dtype=torch.float64)
    torch.testing.assert_close(ours.detach().flatten(), theirs, rtol=1e-10, atol=1e-12)


def test_cosformer():
    compare(CosFormer(SIZES)(*qkv()), "cosformer")


def test_hedgehog():
    hedgehog = Hedgehog(SIZES).double()
    with torch.no_grad():
        hedgehog.weight.copy_(torch.stack([waves(H, D, D, seed=4), waves(H, D, D, seed=5)]))
    compare(hedgehog(*qkv()), "hedgehog")


@pytest.mark.parametrize(
    ("case", "scale", "mask"), [("flare", "one", None), ("flare_masked", "one", SUFFIX), ("flare_sqrt", "sqrt", None)]
)
def test_flare(case, scale, mask):
    """Padding: the released module was handed each row at its own length."""
    d, latents = H * D, 3
    shapes = {
        f"{side}_proj.fc.{part}": (d, d)[: 1 + (part == "weight")] for side in "kv" for part in ("bias", "weight")
    }
    shapes |= {"latent_q": (d, latents), "out_proj.bias": (d,), "out_proj.weight": (d, d)}
    p, x = given(shapes, seed=6), waves(N, L, d, seed=7)
    flare = FLARE(SIZES, latents=latents, scale=scale).double()
    with torch.no_grad():
        flare.latents.copy_(p["latent_q"].view(H, latents, D))
    k, v = (x + F.linear(x, p[f"{side}_proj.fc.weight"], p[f"{side}_proj.fc.bias"]) for side in "kv")
    k, v = (t.unflatten(-1, (H, D)).transpose(1, 2) for t in (k, v))
    out = flare(k, k, v, mask).transpose(1, 2).flatten(2)
    compare(out if mask is None else out[mask], case)


@pytest.mark.parametrize(("case", "mask"), [("dba", None), ("dba_masked", SUFFIX)])
def test_dba(case, mask):
    """The attention of two layers on the same tokens: their layers get it normalised, ours normalise it."""
    d, latents, width = 12, 5, 24
    sizes, x = Sizes(heads=H, head_dim=d // H, value_dim=d // H, length=L), waves(N, L, d, seed=8)
    shapes = {f"{name}.{part}": (rows, d)[: 1 + (part == "weight")]
              for name, rows in (("pq_proj", width), ("pk_proj", width), ("pv_proj", d), ("q_proj", width),
                                 ("k_proj", width), ("v_proj", d), ("q_len_proj", H * latents), ("out_proj", d))
              for part in ("weight", "bias")}  # fmt: skip
    shapes |= {"self_attn_layer_norm1.weight": (d,), "self_attn_layer_norm1.bias": (d,)}
    memory, outs = waves(latents, d, seed=9).expand(N, -1, -1), []
    for layer in range(2):
        p = given(shapes, seed=10 + 20 * layer)
        of = lambda name, p=p: (p[f"{name}.weight"], p[f"{name}.bias"])
        dba = DBA(sizes, dim=d, hidden=4, first=False, latents=latents, width=width).double()
        linear(dba.compress_query, of("pq_proj"))
        linear(dba.compress_context, of("pk_proj"), of("pv_proj"))
        linear(dba.latent_query, of("q_proj"))
        linear(dba.latent_context, of("k_proj"), of("v_proj"))
        linear(dba.expand, of("q_len_proj"))
        linear(dba.output, of("out_proj"))
        dba.latent_norm.load_state_dict(dict(zip(("weight", "bias"), of("self_attn_layer_norm1"), strict=True)))
        nn.init.zeros_(dba.mlp[3].weight)  # no feed-forward layer
        nn.init.zeros_(dba.mlp[3].bias)
        out, memory = dba(x, mask, memory)
        outs.append(out - x)
    compare(torch.stack(outs), case)


@pytest.mark.parametrize(("case", "mask"), [("skyformer", None), ("skyformer_masked", SUFFIX)])
def test_skyformer(case, mask):
    """The first four features of each head; the released inverse starts from the largest sum of the batch."""
    width, samples = 32, 3  # its scale of queries and keys is 32^-1/4 whatever the head size
    sizes, pinv = replace(SIZES, head_dim=width, value_dim=width), partial(cubic, steps=6, init="batch")
    skyformer = Skyformer(sizes, samples=samples, pinv=pinv).double()
    skyformer.draw.copy_((waves(2 * samples, seed=14) + 1) / 2 * 0.999)
    out = skyformer.eval()(*qkv(11, width), mask)[..., :4]
    if mask is None:
        compare(out, case)
        return
    theirs = torch.tensor(RELEASED[case], dtype=torch.float64).view_as(out).transpose(1, 2)[mask]
    torch.testing.assert_close(out.detach().transpose(1, 2)[mask], theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("case", "both"), [("long_conv", False), ("long_conv_both", True)])
def test_long_conv(case, both):
    conv = LongConv(SIZES, dim=3, bidirectional=both, squash=0.3).double()
    with torch.no_grad():
        conv.weights.copy_(waves(1 + both, 3, L, seed=15))
        conv.skip.copy_(waves(3, seed=16))
    compare(conv(waves(N, L, 3, seed=17)), case)
