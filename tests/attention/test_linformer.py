"""Linformer against softmax(q (E k)ᵀ / √D) (F v) written out, in float64."""

import pytest
import torch
from support.features import PATTERNS, SIZES, D, H, all_real, masks, qkv, same_with_gradients

from lra.attention.linformer import Linformer

RANK = 5


def oracle(attention, q, k, v, real):
    out = torch.zeros_like(v)
    for n in range(q.shape[0]):
        for h in range(H):
            e = attention.compress_k[min(h, attention.compress_k.shape[0] - 1)]
            f = e if attention.compress_v is None else attention.compress_v[min(h, attention.compress_v.shape[0] - 1)]
            keys = sum(torch.outer(e[:, j], k[n, h, j]) for j in range(q.shape[2]) if real[n, j])
            values = sum(torch.outer(f[:, j], v[n, h, j]) for j in range(q.shape[2]) if real[n, j])
            weights = (q[n, h] @ keys.T / D**0.5).exp()
            out[n, h] = weights / weights.sum(-1, keepdim=True) @ values
    return out


@pytest.mark.parametrize("share_heads", [False, True])
@pytest.mark.parametrize("share_kv", [False, True])
@PATTERNS
def test_is_its_definition(pattern, share_heads, share_kv):
    torch.manual_seed(0)
    attention = Linformer(SIZES, rank=RANK, share_heads=share_heads, share_kv=share_kv).double()
    mask, x = masks()[pattern], qkv()
    out, expected = attention(*x, mask), oracle(attention, *x, all_real(mask))
    same_with_gradients(out, expected, [*x, *attention.parameters()])
    names = {name: tuple(p.shape) for name, p in attention.named_parameters()}
    shape = (1 if share_heads else H, RANK, SIZES.length)
    assert names == {"compress_k": shape} | ({} if share_kv else {"compress_v": shape})
