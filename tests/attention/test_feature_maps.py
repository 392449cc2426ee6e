"""Hedgehog, cosFormer and FLARE against their maps written out, in float64."""

import math

import pytest
import torch
from support.features import PATTERNS, SIZES, D, H, L, check, masks, qkv, same_with_gradients

from lra.attention.cosformer import CosFormer
from lra.attention.flare import FLARE
from lra.attention.hedgehog import Hedgehog


def hedgehog_of(**options):
    made = Hedgehog(SIZES, **options).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
    return made


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
def test_hedgehog_is_its_kernel_form(pattern, softmax, tie_qk):
    hedgehog = hedgehog_of(softmax=softmax, tie_qk=tie_qk)

    def kernel(h, q, k):
        (wq, wk), (bq, bk) = ((t[0, h], t[-1, h]) for t in (hedgehog.weight, hedgehog.bias))
        return features(k @ wk + bk, softmax) @ features(q @ wq + bq[0], softmax)

    check(hedgehog, kernel, masks()[pattern])


def test_hedgehog_starts_at_the_identity_with_a_map_for_each_head():
    hedgehog = Hedgehog(SIZES)
    assert hedgehog.weight.shape == (2, H, D, D) and hedgehog.bias.shape == (2, H, 1, D)
    assert (hedgehog.weight == torch.eye(D)).all() and (hedgehog.bias == 0).all()


@pytest.mark.parametrize("softmax", ["halves", "joint"])
def test_large_features_of_hedgehog_neither_overflow_nor_vanish(softmax):
    q, k, v = (40 * torch.randn(2, H, 9, D, generator=torch.Generator().manual_seed(i)) for i in range(3))
    q.requires_grad_()
    out = Hedgehog(SIZES, softmax=softmax)(q, k, v)
    out.sum().backward()
    assert out.isfinite().all() and q.grad.isfinite().all()


@PATTERNS
def test_cosformer_is_its_definition(pattern):
    q, k, v = qkv()
    mask = masks()[pattern]
    out, got, want = CosFormer(SIZES)(q, k, v, mask), [], []
    for n in range(3):
        real = range(L) if mask is None else mask[n].nonzero().flatten().tolist()
        for h in range(H):
            for i in real:
                cosines = [math.cos(math.pi * (i - j) / (2 * SIZES.length)) for j in real]
                w = [q[n, h, i].relu() @ k[n, h, j].relu() * c for j, c in zip(real, cosines, strict=True)]
                total = sum(w).clamp(min=1e-6 * len(real))
                got.append(out[n, h, i])
                want.append(sum(a * v[n, h, j] for a, j in zip(w, real, strict=True)) / total)
    same_with_gradients(torch.stack(got), torch.stack(want), (q, k))


def test_a_query_of_cosformer_without_a_weight_gets_zero_and_a_finite_gradient():
    q, k, v = qkv()
    out = CosFormer(SIZES)(-q.abs(), k, v)
    assert (out == 0).all()
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), (q, k, v)))


def flare_of(latents=5, **options):
    torch.manual_seed(0)
    flare = FLARE(SIZES, latents=latents, **options).double()
    flare.latents.data *= 10  # far from the nearly uniform map of the start
    return flare


@PATTERNS
@pytest.mark.parametrize("scale", ["one", "sqrt"])
def test_flare_is_its_definition(pattern, scale):
    flare, mask, (_, k, v) = flare_of(scale=scale), masks()[pattern], qkv()
    out, got, want = flare(k, k, v, mask), [], []
    for n in range(3):
        real = torch.arange(L) if mask is None else mask[n].nonzero().flatten()
        for h in range(H):
            scores = (flare.latents[h] @ k[n, h, real].T / (1 if scale == "one" else D**0.5)).exp()  # (M,n)
            dense = (scores / scores.sum(0)).T @ (scores / scores.sum(1, keepdim=True))  # (n,n)
            got.append(out[n, h, real])
            want.append(dense @ v[n, h, real])
    same_with_gradients(torch.cat(got), torch.cat(want), (k, v, flare.latents))
