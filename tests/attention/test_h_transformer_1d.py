"""H-Transformer-1D against its n x n matrix, pair by pair, in float64."""

import pytest
import torch
from support.features import PATTERNS, D, H, all_real, masks, qkv, real_rows, same_with_gradients, sized

from lra.attention.h_transformer_1d import HTransformer1D

BLOCK = 4


def level(i, j):
    """0 in the same block or its sibling, else the level of which their blocks are siblings."""
    i, j, found = i // BLOCK, j // BLOCK, 0
    while i // 2 != j // 2:
        i, j, found = i // 2, j // 2, found + 1
    return found


def oracle(q, k, v, mask):
    """Scores of the means of both cells, one pair of positions after the other."""
    out, L = torch.zeros_like(v), q.shape[2]
    for n in range(len(q)):
        real = [i for i in range(L) if mask[n, i]]
        mean = lambda x, i, size: x[[j for j in real if j // size == i // size]].mean(0)  # noqa: B023
        for h in range(H):
            for i in real:
                cells = [2 ** level(i, j) for j in real]
                scores = [mean(q[n, h], i, c) @ mean(k[n, h], j, c) for j, c in zip(real, cells, strict=True)]
                out[n, h, i] = (torch.stack(scores) / D**0.5).softmax(0) @ v[n, h, real]
    return out


@PATTERNS
@pytest.mark.parametrize("L", [3, 8, 9, 45, 64])
def test_is_its_definition(pattern, L):
    x, mask = qkv(L, spread=1.5), masks(L)[pattern]
    got, want = sized(HTransformer1D, length=64, block=BLOCK)(*x, mask), oracle(*x, all_real(mask, L))
    same_with_gradients(real_rows(got, mask), real_rows(want, mask), x)


def test_large_scores_of_one_level_do_not_overflow_another():
    q, k, v = (x.detach().float().requires_grad_() for x in qkv(64, spread=60.0))
    out = sized(HTransformer1D, length=64, block=BLOCK)(q, k, v)
    out.sum().backward()
    assert out.isfinite().all() and all(x.grad.isfinite().all() for x in (q, k, v))
