"""The block of state-space models, dropout tied over positions, rotary positions in the encoder."""

import pytest
import torch
from conftest import config
from torch import nn

from lra.attention.base import Mixer, Sizes
from lra.model.blocks import GLU
from lra.model.dropout import Dropout

DIM, SIZES = 6, Sizes(heads=1, head_dim=6, value_dim=6, length=9)


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


def test_batch_norm_is_over_real_tokens():
    made, x = block().train(), torch.randn(2, 9, DIM, dtype=torch.float64)
    made.inner[1].p = made.dropout.p = 0.0
    mask = torch.arange(9) < torch.tensor([[9], [4]])
    other = torch.where(mask[..., None], x, torch.randn_like(x))
    made.mixer.forward = lambda x, mask=None: x  # a mixer that looks at nothing else
    torch.testing.assert_close(made(x, mask)[0][mask], made(other, mask)[0][mask])


def test_widths_must_agree():
    class Wide(Shift):
        width = 7

        def __init__(self):
            super().__init__(SIZES, dim=DIM)
            self.width = 7

    with pytest.raises(ValueError, match="rows of 6 and of 7 from the mixer"):
        GLU(Wide, dim=DIM, hidden=1, dropout=0.0)


def test_tied_dropout_zeroes_a_feature_at_all_positions_of_a_row():
    torch.manual_seed(0)
    out = Dropout(0.25, tied=True)(torch.ones(50, 9, 40))
    assert torch.equal(out, out[:, :1].expand_as(out)) and set(out.unique().tolist()) == {0.0, out.max().item()}
    assert out.max().item() == pytest.approx(4 / 3, rel=1e-4) and abs((out == 0).float().mean() - 0.25) < 0.05


@pytest.mark.parametrize("name", ["sdpa", "cur_abs"])
def test_rotary_scores_see_distances_only(name):
    """Without a position table a row that is shifted behind padding gives the same vectors.

    CUR keeps all of these tokens: which ones it keeps may depend on where they stand. Feature maps (linear) do too.
    """
    model = config(name, "model.positions=rotary", "task.length=64").classifier().double().eval()
    assert model.embed.position is None
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 15, (1, 1, 20), generator=g)
    shifted = torch.cat([torch.zeros(1, 1, 13, dtype=torch.int64), ids], -1)
    mask = torch.arange(33)[None, None] >= 13
    torch.testing.assert_close(model(shifted, mask), model(ids, None), rtol=1e-9, atol=1e-9)
    back = ids.flip(-1)
    assert not torch.allclose(model(back, None), model(ids, None)), "the order of the tokens makes a difference"


def test_rotary_and_packed_rows_agree():
    models = []
    for pad in ("batch", "none"):
        torch.manual_seed(0)
        words = ("model.positions=rotary", "task.length=64", "attn.count=4", f"data.pad={pad}")
        models.append(config("cur_abs", *words).classifier().double().eval())
    ids = torch.randint(1, 15, (3, 1, 40), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(40) < torch.tensor([40, 7, 25])[:, None, None]
    torch.testing.assert_close(models[0](ids * mask, mask), models[1](ids * mask, mask), rtol=1e-9, atol=1e-9)


def test_none_has_no_positions():
    model = config("sdpa", "model.positions=none").classifier().double().eval()
    ids = torch.randint(1, 15, (1, 1, 20))
    torch.testing.assert_close(model(ids.flip(-1), None), model(ids, None))


@pytest.mark.parametrize("name", ["s4d_lin", "luna", "mega", "psf"])
def test_rotary_needs_queries_and_keys(name):
    with pytest.raises(ValueError, match=r"model\.positions must be learned or none for"):
        config(name, "model.positions=rotary").classifier()


def test_rotary_needs_an_even_head_size():
    with pytest.raises(ValueError, match=r"head_dim must be even for rotary positions, not 5"):
        config("sdpa", "model.positions=rotary", "model.head_dim=5").classifier()
