"""Rotary positions: complex multiplication written out, attention of rotated rows, and what can have them."""

import cmath

import pytest
import torch
from conftest import config
from support.features import same_with_gradients

from lra.ops.rotary import rotate

HEADS, D, LENGTH = 2, 6, 11


def mixer():
    torch.manual_seed(0)
    words = ("model.positions=rotary", f"task.length={LENGTH}", f"model.heads={HEADS}", f"model.dim={HEADS * D}")
    return config("sdpa", *words).block_factory()().mixer.double()


def turned(x, position):
    """x (D,): feature i and D/2 + i are one complex number, turned by position · 10000^(-2i/D)."""
    pairs = torch.complex(*x.chunk(2)).clone()
    turns = torch.tensor([cmath.exp(1j * position * 10_000 ** (-2 * i / D)) for i in range(D // 2)], dtype=pairs.dtype)
    return torch.view_as_real(pairs * turns).T.flatten()


def oracle(mixer, x, mask):
    out = torch.zeros_like(x)
    for n in range(len(x)):
        q, k, v = mixer.inputs(x[n]).split(HEADS * D, -1)
        real, rows = mask[n].nonzero().flatten().tolist(), []
        for h in range(HEADS):
            s = slice(h * D, (h + 1) * D)
            keys = torch.stack([turned(k[j, s], j) for j in real])
            rows.append([(keys @ turned(q[i, s], i) / D**0.5).softmax(0) @ v[real, s] for i in range(len(q))])
        out[n] = mixer.output(torch.cat([torch.stack(row) for row in rows], -1))
    return out


def test_is_softmax_attention_of_turned_queries_and_keys():
    made, g = mixer(), torch.Generator().manual_seed(1)
    x = torch.randn(2, LENGTH, HEADS * D, dtype=torch.float64, generator=g).requires_grad_()
    mask = torch.rand(2, LENGTH, generator=g) < 0.7
    same_with_gradients(made(x, mask), oracle(made, x, mask), [x, *made.parameters()])


def test_positions_may_be_any_and_dtypes_stay():
    x, positions = torch.randn(7, D, dtype=torch.float64), torch.tensor([0, 1, 5, 2, 9, 100, 3])
    expected = torch.stack([turned(row, place) for row, place in zip(x, positions.tolist(), strict=True)])
    torch.testing.assert_close(rotate(x, positions), expected, rtol=1e-12, atol=1e-12)
    half = x.bfloat16()
    torch.testing.assert_close(rotate(half), rotate(half.float()).bfloat16(), rtol=2**-8, atol=2**-8)


def test_no_table_of_positions_stands_beside_them_or_where_there_are_none():
    rotary, none = (
        config("sdpa", f"model.positions={kind}").classifier().double().eval() for kind in ("rotary", "none")
    )
    assert rotary.embed.position is none.embed.position is None
    ids = torch.randint(1, 15, (1, 1, 20))
    torch.testing.assert_close(none(ids.flip(-1)), none(ids))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *((name, r"model\.positions must be learned or none for") for name in ("s4d_lin", "luna", "mega", "psf")),
        ("sdpa model.head_dim=5", "head_dim must be even for rotary positions, not 5"),
    ],
)
def test_what_cannot_have_them_is_refused(words, message):
    with pytest.raises(ValueError, match=message):
        config(words, "model.positions=rotary").classifier()
