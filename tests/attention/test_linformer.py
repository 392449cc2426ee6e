"""Linformer against softmax(q (E k)ᵀ / √D) (F v) written out, in float64."""

import pytest
import torch
from support.features import same_with_gradients

from lra.attention.base import Sizes
from lra.attention.linformer import Linformer

N, H, L, D, LENGTH, RANK = 2, 3, 10, 4, 16, 5


def made(**options):
    torch.manual_seed(0)
    return Linformer(Sizes(heads=H, head_dim=D, value_dim=D, length=LENGTH), rank=RANK, **options).double().eval()


def qkv():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, N, H, L, D, dtype=torch.float64, generator=generator)


def mask():
    real = torch.ones(N, L, dtype=torch.bool)
    real[0, [0, 4]], real[1, 6:] = False, False
    return real


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
@pytest.mark.parametrize("masked", [False, True])
def test_is_its_definition(share_heads, share_kv, masked):
    attention = made(share_heads=share_heads, share_kv=share_kv)
    real = mask() if masked else torch.ones(N, L, dtype=torch.bool)
    x = [t.requires_grad_() for t in qkv()]
    out, expected = attention(*x, real if masked else None), oracle(attention, *x, real)
    same_with_gradients(out, expected, [*x, *attention.parameters()])
    names = {name: tuple(p.shape) for name, p in attention.named_parameters()}
    shape = (1 if share_heads else H, RANK, LENGTH)
    assert names == {"compress_k": shape} | ({} if share_kv else {"compress_v": shape})
