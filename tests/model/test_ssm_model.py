"""State-space models: the published models of S4D, S5 and LRU (conf/experiment), and the block around their layers."""

import json
import math
import re
from pathlib import Path

import pytest
import torch
from conftest import assert_error, experiment
from support.features import s5_parts, set_parameters, tensor
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from lra.attention.base import Mixer, Sizes
from lra.attention.s5 import S5
from lra.bench.measure import peak_bytes
from lra.config.recipes import choices
from lra.data.datamodule import Batch
from lra.model.blocks import GLU, Gated
from lra.model.dropout import Dropout
from lra.train import lit, optim

FAMILIES = ("s4d", "s5", "lru")
EXPERIMENTS = [name for name in choices("experiment") if name.split("_")[0] in FAMILIES]
DIM, SIZES = 6, Sizes(heads=1, head_dim=6, value_dim=6, length=9)
RELEASED = json.loads((Path(__file__).parents[1] / "attention" / "released.json").read_text())
S4D_RATES, SLOW_S4D_RATES = (1e-3, 1e-3, 1e-2, 1e-2), (1e-3, 1e-3, 1e-3, 1e-3)
# Parameters of the models in lindermanlab/S5 and minimal-LRU, counted there with our vocabularies and classes; learning
# rates of the eigenvalues, B, the steps or gains and C in the authors' scripts; dropout rate of the blocks.
PUBLISHED = {
    "s4d_listops": (None, S4D_RATES, 0), "s4d_text": (None, S4D_RATES, 0), "s4d_retrieval": (None, S4D_RATES, 0),
    "s4d_image": (None, SLOW_S4D_RATES, 0.1), "s4d_image_small": (None, SLOW_S4D_RATES, 0.1),
    "s4d_pathfinder": (None, SLOW_S4D_RATES, 0), "s4d_pathfinder_x": (None, SLOW_S4D_RATES, 0),
    "s5_listops": (190_026, (1e-3, 3e-3, 1e-3, 3e-3), 0), "s5_text": (1_417_666, (1e-3, 1e-3, 4e-3, 4e-3), 0.1),
    "s5_retrieval": (825_090, (1e-3, 1e-3, 2e-3, 2e-3), 0),
    "s5_image": (5_133_706, (1e-3, 4.5e-3, 1e-3, 4.5e-3), 0.1),
    "s5_pathfinder": (1_113_602, (9e-4, 9e-4, 9e-4, 4.5e-3), 0.05),
    "s5_pathfinder_x": (694_018, (6e-4, 6e-4, 6e-4, 1.8e-3), 0),
    "lru_listops": (997_002, (5e-4, 5e-4, 5e-4, 1e-3), 0), "lru_text": (2_109_058, (1e-4, 1e-4, 1e-4, 1e-3), 0.1),
    "lru_retrieval": (None, (5e-4, 5e-4, 5e-4, 1e-3), 0.1), "lru_image": (7_892_746, (1e-3, 1e-3, 1e-3, 4e-3), 0.1),
    "lru_pathfinder": (None, (2.5e-4, 2.5e-4, 2.5e-4, 1e-3), 0),
    "lru_pathfinder_x": (None, (2.5e-4, 2.5e-4, 2.5e-4, 1e-3), 0),
}  # fmt: skip


def count_parameters(cfg) -> int:
    return sum(p.numel() for p in cfg.meta_model.parameters())


@pytest.mark.parametrize("name", [name for name, (parameters, *_) in PUBLISHED.items() if parameters])
def test_parameter_counts_match_released_models(name):
    """The released models embed tokens by a Dense layer, which has d biases more than an embedding."""
    cfg = experiment(f"experiment={name}")
    assert count_parameters(cfg) == PUBLISHED[name][0] - (cfg.model.dim if "Token" in cfg.model.embed.path else 0)


def test_s4d_image_parameter_counts_match_published():
    """state-spaces/s4 prints 267K and 3.96M parameters in configs/experiment/mega/lra-image/README.md."""
    assert round(count_parameters(experiment("experiment=s4d_image_small")) / 1e3) == 267
    large = ("attn=s4d_lin", "attn.shared=false", "block.prenorm=true", "model.norm=batch")
    assert round(count_parameters(experiment("experiment=s4d_image", *large)) / 1e6, 2) == 3.96


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_rates_decay_dropout_and_norms_match_released(name):
    """Biases and norms have no weight decay in S4D, but have it in S5 and LRU. Embeddings have no dropout."""
    cfg, family = experiment(f"experiment={name}", "model.layers=1"), name.split("_")[0]
    model, (_, rates, p) = cfg.classifier(), PUBLISHED[name]
    groups = {id(p): group for group in optim.adamw(model, dict(cfg.optim)).param_groups for p in group["params"]}
    free = {key for key, p in model.named_parameters() if groups[id(p)]["weight_decay"] == 0 and ".mixer." not in key}
    norms = {f"norm.{key}" for key in ("weight", "bias") if cfg.model.norm}
    block_names = {"blocks.0.gate.bias", "blocks.0.norm.weight", "blocks.0.norm.bias"}
    assert free == (norms | block_names if family == "s4d" else set())
    block = model.blocks[0]
    names = {"s4d": ("A_imag", "B", "log_dt", "C"), "s5": ("frequency", "b", "log_step", "c")}
    names["lru"] = ("nu", "b", "gamma", "c")
    parameters = [groups[id(getattr(block.mixer, key))] for key in names[family]]
    assert [group["lr"] for group in parameters] == pytest.approx(rates, rel=1e-6)
    assert parameters[-1]["weight_decay"] == cfg.optim.weight_decay

    dropouts = {key: (part.p, part.tied) for key, part in model.named_modules() if isinstance(part, Dropout) and part.p}
    is_tied = name != "s4d_image_small"
    expected = {"blocks.0.inner.1": (p, is_tied), "blocks.0.dropout": (p, is_tied)}
    if family == "s4d":
        expected["blocks.0.mixed_dropout"] = (p, False)
    assert dropouts == (expected if p else {})
    assert block.inner[0].approximate == ("none" if family == "s4d" else "tanh")
    assert block.norm.momentum == {"s4d": 0.1, "s5": 0.1 if "path" in name else 0.05, "lru": 0.01}[family]


@pytest.mark.parametrize("name", ["s5_image", "s5_retrieval", "lru_text"])
def test_linear_layers_initialise_like_flax(name):
    """A normal distribution truncated at two of its standard deviations keeps 0.8796 of its standard deviation."""
    model = experiment(f"experiment={name}", "model.layers=1").classifier()
    weights = [(part.weight, part.in_features**-0.5) for part in model.modules() if isinstance(part, nn.Linear)]
    embed = model.embed
    weights.append((embed.scale, 1.0) if hasattr(embed, "scale") else (embed.token.weight, embed.std))
    for weight, std in weights:
        bound, error = 2 * std / 0.8796, 4 * std / weight.numel() ** 0.5
        assert weight.abs().max() <= bound * 1.001 and abs(weight.std().item() - std) < error
        assert weight.numel() < 10_000 or weight.abs().max() > 0.98 * bound
    is_zero_init = lambda key, p: key.endswith(("gate.bias", "shift")) or ("head" in key and p.dim() == 1)
    biases = [p for key, p in model.named_parameters() if is_zero_init(key, p)]
    assert biases and not any(p.any() for p in biases)


@pytest.mark.parametrize("name, black", [("s4d_pathfinder", 0), ("s4d_pathfinder_x", 0), ("s5_pathfinder", -1)])
@torch.no_grad()
def test_pathfinder_pixel_range_matches_released(name, black):
    embed = experiment(f"experiment={name}", "model.layers=1").classifier().embed
    embed.scale.fill_(1)
    embed.shift.fill_(0)
    assert embed(torch.tensor([[0, 255]]))[0, :, 0].tolist() == [black, 1]


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name.startswith("s5")])
def test_s5_learning_rates_match_released_at_every_step(name):
    """linear_warmup and cosine_annealing of S5's train_helpers.py, whose step counts the finished steps."""
    o = experiment(f"experiment={name}").optim
    length = o.steps - o.warmup
    for step in [1, *range(0, o.steps, 997), o.warmup, o.warmup + 1, length - 1, length, o.steps - 1]:
        released = o.lr * step / o.warmup if step <= o.warmup and o.warmup else None
        if released is None:
            released = 0.5 * o.lr * (1 + math.cos(math.pi * min(step, length) / length))
        # Our warm-up starts at 1e-7.
        assert optim.cosine(step, dict(o)) == pytest.approx(released, abs=1.1e-7), step


def count_peak_memory(cfg) -> int:
    """Count the peak memory in bytes of both passes over a full batch, on fake tensors."""
    model, task = cfg.classifier().train(), cfg.task
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        for module in model.modules():
            for key, parameter in module.named_parameters(recurse=False):
                setattr(module, key, nn.Parameter(mode.from_tensor(parameter.data)))
            for key, buffer in module.named_buffers(recurse=False):
                setattr(module, key, mode.from_tensor(buffer))
        ids = torch.randint(1, min(256, task.vocab), (cfg.optim.batch, task.towers, task.limit))
        batch = Batch(ids, None, torch.randint(0, task.outputs, (cfg.optim.batch,)))
        return peak_bytes(lambda: lit.loss(model, batch).backward())


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_documented_memory_is_counted_memory_with_moments(name, monkeypatch):
    """The table of docs/ssm.md has the memory of the full batch of each experiment."""
    text = (Path(__file__).parents[2] / "docs" / "ssm.md").read_text()
    documented_gigabytes = dict(re.findall(r"^\| `((?:s4d|s5|lru)_\w+)` \|.*\| ([\d.]+) \|$", text, re.M))
    # Fake tensors cannot represent the dropout masks that NumPy draws.
    monkeypatch.setattr(Dropout, "_draw_mask", lambda self, x, *_: torch.ones_like(x))
    cfg = experiment(f"experiment={name}")
    full_batch_bytes = count_peak_memory(cfg) + 8 * count_parameters(cfg)
    assert full_batch_bytes / 1e9 == pytest.approx(float(documented_gigabytes[name]), rel=0.05)


class Shift(Mixer):
    def forward(self, x, mask=None):
        return x.roll(1, 1)


def layer_norm(x):
    return nn.functional.layer_norm(x, (DIM,))


def make(kind=GLU, **options) -> nn.Module:
    torch.manual_seed(0)
    return kind(lambda: Shift(SIZES, dim=DIM), dim=DIM, hidden=1, dropout=0.5, **options).double().eval()


@pytest.mark.parametrize("prenorm", [True, False])
def test_glu_block_matches_formula(prenorm):
    block, x = make(norm="layer", prenorm=prenorm), torch.randn(2, 9, DIM, dtype=torch.float64)
    value, gate = block.gate(nn.functional.gelu((layer_norm(x) if prenorm else x).roll(1, 1))).chunk(2, -1)
    out = x + value * torch.sigmoid(gate)
    torch.testing.assert_close(block(x, None)[0], out if prenorm else layer_norm(out))


@pytest.mark.parametrize("expand", [0, 1, 2])
def test_gated_block_matches_formula(expand):
    block, x = make(Gated, norm="layer", expand=expand), torch.randn(2, 9, DIM, dtype=torch.float64)
    out = x + layer_norm(x).roll(1, 1)
    if expand:
        gate, value = block.mlp_inputs(layer_norm(out)).chunk(2, -1)
        out = out + block.mlp_output(gate * gate.sigmoid() * value)
    torch.testing.assert_close(block(x, None)[0], out)


def test_glu_block_batch_norm_ignores_padding():
    block, x = make().train(), torch.randn(2, 9, DIM, dtype=torch.float64)
    block.inner[1].p = block.dropout.p = 0.0
    mask = torch.arange(9) < torch.tensor([[9], [4]])
    changed_x = torch.where(mask[..., None], x, torch.randn_like(x))
    # The mixer is the identity, so only the norm could mix in padding.
    block.mixer.forward = lambda x, mask=None: x
    torch.testing.assert_close(block(x, mask)[0][mask], block(changed_x, mask)[0][mask])


def test_mixer_width_mismatch_raises_value_error():
    wide_mixer = Shift(SIZES, dim=DIM)
    wide_mixer.width = 7
    assert_error("model.dim is 6, the mixer returns 7", GLU, lambda: wide_mixer, dim=DIM, hidden=1, dropout=0.0)


def test_mixer_dropout_is_applied_before_gelu():
    block, gelu_inputs = make(mixer_dropout=True).float(), []
    block.mixer.forward = lambda x, mask: torch.ones_like(x)
    block.inner.register_forward_pre_hook(lambda module, args: gelu_inputs.append(args[0]))
    block.train()(torch.randn(4, 50, DIM), None)
    block.eval()(torch.randn(4, 50, DIM), None)
    assert set(gelu_inputs[0].unique().tolist()) == {0.0, 2.0} and bool((gelu_inputs[1] == 1).all())
    # Positions do not share a mask.
    assert gelu_inputs[0].std(1).min() > 0


@pytest.mark.parametrize("activation", RELEASED["layer"])
def test_glu_block_matches_released_s5_layer(activation):
    """S5's SequenceLayer in evaluation, up to float32: the released BatchNorm stores its statistics in float32."""
    case = RELEASED["layer"][activation]
    x, parameters = tensor(RELEASED["x"]), case["params"]
    dim = x.shape[1]
    mixer = S5(Sizes(heads=1, head_dim=dim, value_dim=dim, length=len(x)), dim=dim, states=4, blocks=1)
    block = GLU(lambda: mixer, dim=dim, hidden=1, dropout=0.0, activation=activation, gelu="tanh").double().eval()
    set_parameters(mixer, **s5_parts(parameters["seq"]))
    linear = [parameters[key] for key in ("out1", "out2") if key in parameters]
    weight = torch.cat([tensor(part["kernel"]).mT for part in linear])
    set_parameters(block.gate, weight=weight, bias=torch.cat([tensor(part["bias"]) for part in linear]))
    torch.testing.assert_close(block(x[None], None)[0][0], tensor(case["y"]), rtol=1e-7, atol=1e-7)
