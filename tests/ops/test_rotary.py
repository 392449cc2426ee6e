"""Rotary positions: complex multiplication written out, and what it is for."""

import cmath

import pytest
import torch

from lra.ops.rotary import rotate


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
