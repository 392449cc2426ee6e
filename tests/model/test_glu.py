"""The block of state-space models: its formula, and the released layer of S5."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from lra.attention.base import Mixer, Sizes
from lra.attention.s5 import S5
from lra.model.blocks import GLU, Gated

DIM, SIZES = 6, Sizes(heads=1, head_dim=6, value_dim=6, length=9)
RELEASED = json.loads((Path(__file__).parents[1] / "attention" / "released.json").read_text())


class Shift(Mixer):
    def forward(self, x, mask=None):
        return x.roll(1, 1)


def block(**options) -> GLU:
    torch.manual_seed(0)
    return GLU(lambda: Shift(SIZES, dim=DIM), dim=DIM, hidden=1, dropout=0.5, **options).double().eval()


@pytest.mark.parametrize("prenorm", [True, False])
def test_is_its_formula(prenorm):
    made, x = block(norm="layer", prenorm=prenorm), torch.randn(2, 9, DIM, dtype=torch.float64)
    norm = lambda x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    y = nn.functional.gelu((norm(x) if prenorm else x).roll(1, 1)) @ made.gate.weight.T + made.gate.bias
    out = x + y[..., :DIM] * torch.sigmoid(y[..., DIM:])
    torch.testing.assert_close(made(x, None)[0], out if prenorm else norm(out))


@pytest.mark.parametrize("expand", [0, 1, 2])
def test_the_gated_block_is_its_formula(expand):
    made = Gated(lambda: Shift(SIZES, dim=DIM), dim=DIM, hidden=1, dropout=0.5, norm="layer", expand=expand)
    x = torch.randn(2, 9, DIM)
    norm = lambda x: nn.functional.layer_norm(x, (DIM,))
    out = x + norm(x).roll(1, 1)
    if expand:
        gate, value = made.mlp_inputs(norm(out)).split(expand * DIM, -1)
        out = out + made.mlp_output(gate * gate.sigmoid() * value)
    torch.testing.assert_close(made.eval()(x, None)[0], out)


def test_batch_norm_is_over_real_tokens():
    made, x = block().train(), torch.randn(2, 9, DIM, dtype=torch.float64)
    made.inner[1].p = made.dropout.p = 0.0
    mask = torch.arange(9) < torch.tensor([[9], [4]])
    other = torch.where(mask[..., None], x, torch.randn_like(x))
    made.mixer.forward = lambda x, mask=None: x  # a mixer that looks at nothing else
    torch.testing.assert_close(made(x, mask)[0][mask], made(other, mask)[0][mask])


def test_widths_must_agree():
    wide = Shift(SIZES, dim=DIM)
    wide.width = 7
    with pytest.raises(ValueError, match=r"width mismatch: model.dim is 6, the mixer returns 7"):
        GLU(lambda: wide, dim=DIM, hidden=1, dropout=0.0)


def test_dropout_of_the_mixer_acts_before_the_gelu():
    made, seen = block(mixer_dropout=True).float(), []
    made.mixer.forward = lambda x, mask: torch.ones_like(x)
    made.inner.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    made.train()(torch.randn(4, 50, DIM), None)
    made.eval()(torch.randn(4, 50, DIM), None)
    assert set(seen[0].unique().tolist()) == {0.0, 2.0} and bool((seen[1] == 1).all())
    assert seen[0].std(1).min() > 0  # each position its own


@pytest.mark.parametrize("activation", RELEASED["layer"])
def test_the_block_is_the_released_layer(activation):
    """S5's SequenceLayer in evaluation.

    The tolerance is float32's: the released BatchNorm keeps its statistics in it.
    """
    case, tensor = RELEASED["layer"][activation], partial(torch.tensor, dtype=torch.float64)
    p, x = case["params"], tensor(RELEASED["x"])
    dim = x.shape[1]
    mixer = S5(Sizes(heads=1, head_dim=dim, value_dim=dim, length=len(x)), dim=dim, states=4, blocks=1)
    made = GLU(lambda: mixer, dim=dim, hidden=1, dropout=0.0, activation=activation, gelu="tanh").double().eval()
    seq = {key: tensor(value) for key, value in p["seq"].items()}
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
        made.gate.weight.copy_(torch.cat([tensor(one["kernel"]).mT for one in linear]))
        made.gate.bias.copy_(torch.cat([tensor(one["bias"]) for one in linear]))
    torch.testing.assert_close(made(x[None], None)[0][0], tensor(case["y"]), rtol=1e-7, atol=1e-7)
