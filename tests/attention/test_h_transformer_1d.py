"""H-Transformer-1D against its n x n matrix, pair by pair, in float64."""

import pytest
import torch
from support.features import real_rows, same_with_gradients

from lra.attention.base import Sizes
from lra.attention.h_transformer_1d import HTransformer1D

N, H, D, E, BLOCK = 2, 2, 4, 3, 4


def made():
    return HTransformer1D(Sizes(heads=H, head_dim=D, value_dim=E, length=64), block=BLOCK)


def qkv(L, spread=1.5):
    g = torch.Generator().manual_seed(0)
    normal = lambda e: torch.randn(N, H, L, e, dtype=torch.float64, generator=g)
    return spread * normal(D), spread * normal(D), normal(E)


def mask_of(L):
    mask = torch.rand(N, L, generator=torch.Generator().manual_seed(1)) < 0.6
    mask[0, L - L // 3 :], mask[:, 0] = False, True
    return mask


def level(i, j):
    """0 in the same block or its sibling, else the level of which their blocks are siblings."""
    i, j, found = i // BLOCK, j // BLOCK, 0
    while i // 2 != j // 2:
        i, j, found = i // 2, j // 2, found + 1
    return found


def oracle(q, k, v, mask):
    """Scores of the means of both cells, one pair of positions after the other."""
    out, L = torch.zeros_like(v), q.shape[2]
    for n in range(N):
        real = [i for i in range(L) if mask[n, i]]
        mean = lambda x, i, size: x[[j for j in real if j // size == i // size]].mean(0)  # noqa: B023
        for h in range(H):
            for i in real:
                cells = [2 ** level(i, j) for j in real]
                scores = [mean(q[n, h], i, c) @ mean(k[n, h], j, c) for j, c in zip(real, cells, strict=True)]
                out[n, h, i] = (torch.stack(scores) / D**0.5).softmax(0) @ v[n, h, real]
    return out


@pytest.mark.parametrize("L", [3, 8, 9, 45, 64])
@pytest.mark.parametrize("masked", [False, True])
def test_is_its_definition(L, masked):
    mask = mask_of(L) if masked else torch.ones(N, L, dtype=torch.bool)
    x = [t.requires_grad_() for t in qkv(L)]
    got, want = made()(*x, mask if masked else None), oracle(*x, mask)
    same_with_gradients(real_rows(got, mask), real_rows(want, mask), x)


def test_large_scores_of_one_level_do_not_overflow_another():
    q, k, v = (x.float().requires_grad_() for x in qkv(64, spread=60.0))
    out = made()(q, k, v)
    out.sum().backward()
    assert out.isfinite().all() and all(x.grad.isfinite().all() for x in (q, k, v))
