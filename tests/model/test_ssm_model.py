"""The published models of S4D, S5 and LRU (conf/experiment): their sizes, their rates, one step of each in full."""

import json
import re
from pathlib import Path

import pytest
import torch
from conftest import CONF, compose
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from lra.attention.base import Sizes
from lra.attention.s5 import S5
from lra.bench.measure import peak_bytes
from lra.data.datamodule import Batch
from lra.model.blocks import GLU
from lra.model.dropout import Dropout
from lra.train import build, lit_module, optim

FAMILIES = ("s4d", "s5", "lru")
EXPERIMENTS = sorted(p.stem for p in (CONF / "experiment").glob("*.yaml") if p.stem.split("_")[0] in FAMILIES)
RELEASED = json.loads((Path(__file__).parents[1] / "attention" / "released_ssm.json").read_text())

# Parameters of lindermanlab/S5's and minimal-LRU's own models at our vocabularies and classes, counted there.
COUNTED = {
    "s5_listops": 190_026,
    "s5_text": 1_417_666,
    "s5_retrieval": 825_090,
    "s5_image": 5_133_706,
    "s5_pathfinder": 1_113_602,
    "s5_pathfinder_x": 694_018,
    "lru_listops": 997_002,
    "lru_text": 2_109_058,
    "lru_image": 7_892_746,
}


def count(cfg) -> int:
    return sum(p.numel() for p in build.sketch(cfg).parameters())


@pytest.mark.parametrize("name", COUNTED)
def test_sizes_are_those_of_the_released_models(name):
    """Their tokens go through a Dense layer, which has d biases more than an embedding."""
    cfg = compose("train", [f"experiment={name}"])
    biases = cfg.model.dim if "Token" in cfg.model.embed._target_ else 0
    assert count(cfg) == COUNTED[name] - biases


def test_sizes_of_s4d_on_image_are_the_printed_ones():
    """267K and 3.96M parameters in configs/experiment/mega/lra-image/README.md of state-spaces/s4."""
    assert round(count(compose("train", ["experiment=s4d_image_small"])) / 1e3) == 267
    large = ("attn=s4d_lin", "attn.shared=false", "block.prenorm=true", "model.norm=batch")
    assert round(count(compose("train", ["experiment=s4d_image", *large])) / 1e6, 2) == 3.96


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_sizes_are_those_of_the_formulas(name):
    cfg = compose("train", [f"experiment={name}"])
    d, a, towers = cfg.model.dim, cfg.attn, cfg.task.towers
    directions = 2 if a.bidirectional else 1
    if name.startswith("s4d"):
        rows, m = 1 if a.shared else d, a.states // 2
        mixer = 2 * d + 4 * rows * m + directions * 2 * d * m
    elif name.startswith("s5"):
        mixer = a.states // 2 * 3 + a.states * d * (1 + directions) + d
    else:
        mixer = 3 * a.states + 2 * a.states * d * (1 + directions) + d
    gate = (d + 1) * d * (2 if cfg.block.activation == "full_glu" else 1)
    ends = (cfg.task.vocab if "Token" in cfg.model.embed._target_ else 2) * d + (2 * d if cfg.model.norm else 0)
    head = (d + 1) * cfg.task.outputs if towers == 1 else (4 * d + 1) * d + (d + 1) * cfg.task.outputs
    assert count(cfg) == cfg.model.layers * (mixer + gate + 2 * d) + ends + head


def test_bidirectional_lru_is_on_paths_alone():
    both = {name for name in EXPERIMENTS if compose("train", [f"experiment={name}"]).attn.bidirectional}
    assert both == {name for name in EXPERIMENTS if "pathfinder" in name or not name.startswith("lru")}


RATES = {  # learning rates of the eigenvalues, of B and of the steps, as the authors' scripts have them
    "s4d_listops": (1e-3, 1e-3, 1e-2),
    "s4d_text": (1e-3, 1e-3, 1e-2),
    "s4d_retrieval": (1e-3, 1e-3, 1e-2),
    "s4d_image": (1e-3, 1e-3, 1e-3),
    "s4d_image_small": (1e-3, 1e-3, 1e-3),
    "s4d_pathfinder": (1e-3, 1e-3, 1e-3),
    "s4d_pathfinder_x": (1e-3, 1e-3, 1e-3),
    "s5_listops": (1e-3, 3e-3, 1e-3),
    "s5_text": (1e-3, 1e-3, 4e-3),
    "s5_retrieval": (1e-3, 1e-3, 2e-3),
    "s5_image": (1e-3, 4.5e-3, 1e-3),
    "s5_pathfinder": (9e-4, 9e-4, 9e-4),
    "s5_pathfinder_x": (6e-4, 6e-4, 6e-4),
}


@pytest.mark.parametrize("name", RATES)
def test_states_learn_at_the_released_rates(name):
    cfg = compose("train", [f"experiment={name}", "model.layers=1"])
    model = build.classifier(cfg)
    rate = {id(p): group["lr"] for group in optim.adamw(model, cfg.optim).param_groups for p in group["params"]}
    mixer = model.blocks[0].mixer
    found = [rate[id(p)] for p in (mixer.frequency, mixer.b, mixer.log_step, mixer.c)]
    assert found == pytest.approx([*RATES[name], cfg.optim.lr], rel=1e-6)


@pytest.mark.parametrize("activation", RELEASED["layer"])
def test_the_block_is_the_released_layer(activation):
    """S5's SequenceLayer in evaluation; its GELU is the tanh formula, up to 5e-4 from the exact.

    The tolerance is float32's: the released BatchNorm keeps its statistics in it.
    """
    case = RELEASED["layer"][activation]
    p, x = case["params"], torch.tensor(RELEASED["x"], dtype=torch.float64)
    dim = x.shape[1]
    mixer = S5(Sizes(heads=1, head_dim=dim, value_dim=dim, length=len(x)), dim=dim, states=4, blocks=1)
    made = GLU(lambda: mixer, dim=dim, hidden=1, dropout=0.0, activation=activation).double().eval()
    made.inner[0].approximate = "tanh"
    seq = {key: torch.tensor(value, dtype=torch.float64) for key, value in p["seq"].items()}
    parts = {
        "decay": seq["Lambda_re"],
        "frequency": seq["Lambda_im"],
        "log_step": seq["log_step"][:, 0],
        "b": seq["B"],
        "c": torch.stack([seq["C1"], seq["C2"]]),
        "skip": seq["D"],
    }
    linear = [p[key] for key in ("out1", "out2") if key in p]
    with torch.no_grad():
        for key, value in parts.items():
            getattr(mixer, key).copy_(value)
        made.gate.weight.copy_(torch.cat([torch.tensor(one["kernel"], dtype=torch.float64).mT for one in linear]))
        made.gate.bias.copy_(torch.cat([torch.tensor(one["bias"], dtype=torch.float64) for one in linear]))
    expected = torch.tensor(case["y"], dtype=torch.float64)
    torch.testing.assert_close(made(x[None], None)[0][0], expected, rtol=1e-7, atol=1e-7)


def rows(cfg, size: int) -> Batch:
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(1, min(256, cfg.task.vocab), (size, cfg.task.towers, cfg.task.limit), generator=g)
    return Batch(ids, None, torch.randint(0, cfg.task.outputs, (size,), generator=g))


def counted(cfg, size: int) -> int:
    """Most bytes alive in a forward and backward pass over ``size`` rows, by tensors that have sizes and no numbers."""
    model = build.classifier(cfg).train()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        for module in model.modules():
            for key, parameter in module.named_parameters(recurse=False):
                setattr(module, key, nn.Parameter(mode.from_tensor(parameter.data)))
            for key, buffer in module.named_buffers(recurse=False):
                setattr(module, key, mode.from_tensor(buffer))
        return peak_bytes(lambda: lit_module.loss(model, rows(cfg, size)).backward())


def told() -> dict[str, str]:
    """Experiment -> GB of its full batch in the table of docs/protocol.md."""
    text = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    return dict(re.findall(r"^\| `((?:s4d|s5|lru)_\w+)` \|.*\| ([\d.]+) \|$", text, re.M))


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_one_step_of_the_whole_model_at_full_length(name, record_property, monkeypatch):
    """Two examples; and the memory of the full batch, counted, is that of docs/protocol.md, moments included."""
    cfg = compose("train", [f"experiment={name}"])
    torch.manual_seed(0)
    model, batch = build.classifier(cfg).train(), rows(cfg, 2)
    optimiser = optim.adamw(model, cfg.optim)
    before = [p.detach().clone() for p in model.parameters()]
    losses = []

    def step():
        losses.append(lit_module.loss(model, batch))
        losses[0].backward()

    peak = peak_bytes(step)
    optimiser.step()
    assert losses[0].isfinite()
    assert all(bool((p != old).any() and p.isfinite().all()) for p, old in zip(model.parameters(), before, strict=True))
    record_property("peak_mb", round(peak / 1e6))
    # numpy's numbers are none of torch's
    monkeypatch.setattr(Dropout, "_drawn", lambda self, x, *_: torch.ones_like(x))
    assert counted(cfg, 2) == pytest.approx(peak, rel=0.2)
    full = counted(cfg, cfg.optim.batch) + 8 * sum(p.numel() for p in model.parameters())
    print(f"{name}: {peak / 1e6:.0f} MB at 2, {full / 1e9:.1f} GB at {cfg.optim.batch}")
    assert full / 1e9 == pytest.approx(float(told()[name]), rel=0.05)
