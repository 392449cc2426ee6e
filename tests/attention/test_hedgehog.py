"""Hedgehog against its kernel, exponentials written out, in float64."""

import pytest
import torch
from support.features import PATTERNS, SIZES, D, H, check, masks

from lra.attention.hedgehog import Hedgehog


def made(**options):
    hedgehog = Hedgehog(SIZES, **options).double()
    with torch.no_grad():
        for parameter in hedgehog.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
    return hedgehog


def features(y, softmax):
    """One feature after the other: y (...,D) -> a list of 2D numbers."""
    if softmax == "joint":
        rows = [(2 * y[..., i]).exp() for i in range(D)] + [(-2 * y[..., i]).exp() for i in range(D)]
        return torch.stack([row / sum(rows) for row in rows], -1)
    up, down = ([(sign * y[..., i]).exp() for i in range(D)] for sign in (1, -1))
    return torch.stack([row / sum(up) for row in up] + [row / sum(down) for row in down], -1)


@PATTERNS
@pytest.mark.parametrize("softmax", ["halves", "joint"])
@pytest.mark.parametrize("tie_qk", [False, True])
def test_is_its_kernel_form(pattern, softmax, tie_qk):
    hedgehog = made(softmax=softmax, tie_qk=tie_qk)

    def kernel(h, q, k):
        (wq, wk), (bq, bk) = ((t[0, h], t[-1, h]) for t in (hedgehog.weight, hedgehog.bias))
        return features(k @ wk + bk, softmax) @ features(q @ wq + bq[0], softmax)

    check(hedgehog, kernel, masks()[pattern])


def test_starts_at_the_identity_with_a_map_for_each_head():
    hedgehog = Hedgehog(SIZES)
    assert hedgehog.weight.shape == (2, H, D, D) and hedgehog.bias.shape == (2, H, 1, D)
    assert (hedgehog.weight == torch.eye(D)).all() and (hedgehog.bias == 0).all()


@pytest.mark.parametrize("softmax", ["halves", "joint"])
def test_large_features_neither_overflow_nor_vanish(softmax):
    q, k, v = (40 * torch.randn(2, H, 9, D, generator=torch.Generator().manual_seed(i)) for i in range(3))
    q.requires_grad_()
    out = Hedgehog(SIZES, softmax=softmax)(q, k, v)
    out.sum().backward()
    assert out.isfinite().all() and q.grad.isfinite().all()
