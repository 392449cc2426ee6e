"""Rotary positions: complex multiplication written out, attention of rotated rows, and what they are for."""

import cmath

import pytest
import torch
from conftest import config

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
    got, want = made(x, mask), oracle(made, x, mask)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    grads = [torch.autograd.grad(y.square().sum(), [x, *made.parameters()]) for y in (got, want)]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("positions", ["rotary", "none"])
def test_only_positions_tell_which_of_two_symbols_comes_first(positions):
    """Rows of two symbols in either order among equal ones, pooled over all: without positions the orders are alike."""
    torch.manual_seed(0)
    model = config("sdpa", f"model.positions={positions}", "task.length=16", "model.dropout=0").classifier()
    ids = torch.full((8, 1, 16), 3)
    first, second = torch.arange(8), torch.arange(8) + 8
    labels = torch.arange(8) % 2
    ids[range(8), 0, first], ids[range(8), 0, second] = 1 + labels, 2 - labels
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(model(ids), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert (loss < 0.1) if positions == "rotary" else (loss > 0.69)


def test_is_multiplication_by_unit_complex_numbers():
    x = torch.randn(2, 3, 7, 8, dtype=torch.float64)
    positions = torch.tensor([0, 1, 5, 2, 9, 100, 3])
    pairs = torch.complex(x[..., :4], x[..., 4:])
    for at, place in enumerate(positions.tolist()):
        for i in range(4):
            pairs[..., at, i] *= cmath.exp(1j * place * 10_000 ** (-2 * i / 8))
    torch.testing.assert_close(rotate(x, positions), torch.cat([pairs.real, pairs.imag], -1), rtol=1e-12, atol=1e-12)


def test_scores_depend_on_the_distance_alone():
    q, k = torch.randn(2, 1, 8, dtype=torch.float64)
    score = lambda i, j: (rotate(q, torch.tensor([i])) * rotate(k, torch.tensor([j]))).sum()
    torch.testing.assert_close(score(3, 10), score(203, 210), rtol=1e-10, atol=1e-10)
    assert (score(3, 10) - score(3, 11)).abs() > 1e-3
    torch.testing.assert_close(rotate(q, torch.tensor([17])).norm(), q.norm())


def test_positions_default_to_places_and_dtypes_stay():
    x = torch.randn(2, 5, 6)
    assert torch.equal(rotate(x), rotate(x, torch.arange(5)))
    half = rotate(x.bfloat16())
    assert half.dtype is torch.bfloat16
    torch.testing.assert_close(half.float(), rotate(x.bfloat16().float()), rtol=2**-8, atol=2**-8)


def test_odd_head_size_is_refused():
    with pytest.raises(ValueError, match="even head size, not 5"):
        rotate(torch.zeros(1, 2, 5))
