"""FLARE against its map written out as an n x n matrix, in float64."""

import pytest
import torch
from support.features import PATTERNS, SIZES, D, H, L, masks, qkv

from lra.attention.flare import FLARE


def made(latents=5, **options):
    torch.manual_seed(0)
    flare = FLARE(SIZES, latents=latents, **options).double()
    flare.latents.data *= 10  # far from the nearly uniform map of the start
    return flare


@PATTERNS
@pytest.mark.parametrize("scale", ["one", "sqrt"])
def test_is_its_definition(pattern, scale):
    flare, mask, (_, k, v) = made(scale=scale), masks()[pattern], qkv()
    out, got, want = flare(k, k, v, mask), [], []
    for n in range(3):
        real = torch.arange(L) if mask is None else mask[n].nonzero().flatten()
        for h in range(H):
            scores = (flare.latents[h] @ k[n, h, real].T / (1 if scale == "one" else D**0.5)).exp()  # (M,n)
            dense = (scores / scores.sum(0)).T @ (scores / scores.sum(1, keepdim=True))  # (n,n)
            got.append(out[n, h, real])
            want.append(dense @ v[n, h, real])
    got, want = torch.cat(got), torch.cat(want)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)
    weight = torch.randn(want.shape, generator=torch.Generator().manual_seed(1), dtype=want.dtype)
    leaves = (k, v, flare.latents)
    for a, b in zip(*(torch.autograd.grad((x * weight).sum(), leaves) for x in (got, want)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


def test_rank_is_the_number_of_latents_at_most():
    flare, (_, k, _) = made(latents=3), qkv()
    found = flare(k, k, torch.eye(L, dtype=torch.float64).expand(3, H, -1, -1))
    assert (torch.linalg.matrix_rank(found, rtol=1e-9) == 3).all()


def test_keys_and_queries_are_one_projection():
    assert FLARE.shares_qk
