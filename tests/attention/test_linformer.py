"""Linformer against softmax(q (E k)ᵀ / √D) (F v) written out, in float64."""

import pytest
import torch

from lra.attention.base import Sizes
from lra.attention.linformer import Linformer

N, H, L, D, LENGTH, RANK = 2, 3, 10, 4, 16, 5


def made(length=LENGTH, **options):
    torch.manual_seed(0)
    sizes = Sizes(heads=H, head_dim=D, value_dim=D, length=length)
    return Linformer(sizes, **({"rank": RANK} | options)).double().eval()


def qkv(length=L):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, N, H, length, D, dtype=torch.float64, generator=generator)


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
    out = attention(*qkv(), real if masked else None)
    torch.testing.assert_close(out, oracle(attention, *qkv(), real), rtol=1e-12, atol=1e-12)
    names = {name: tuple(p.shape) for name, p in attention.named_parameters()}
    shape = (1 if share_heads else H, RANK, LENGTH)
    assert names == {"compress_k": shape} | ({} if share_kv else {"compress_v": shape})


def test_gradient_of_the_definition():
    attention, real = made(share_kv=False), mask()
    weight, grads = qkv()[0].cos(), []
    for f in (attention, lambda *args: oracle(attention, *args)):
        inputs = [t.clone().requires_grad_() for t in qkv()]
        grads.append(torch.autograd.grad((f(*inputs, real) * weight).sum(), [*inputs, *attention.parameters()]))
    torch.testing.assert_close(*grads, rtol=1e-11, atol=1e-12)


def test_identity_maps_are_exact_attention():
    attention = made(rank=LENGTH, share_heads=True)
    with torch.no_grad():
        attention.compress_k.copy_(torch.eye(LENGTH))
    q, k, v = qkv(LENGTH)
    exact = (q @ k.mT / D**0.5).softmax(-1) @ v
    torch.testing.assert_close(attention(q, k, v), exact, rtol=1e-12, atol=1e-12)


def test_identity_maps_give_padding_the_weight_of_a_zero_key():
    """Padding is zeroed, not masked: the one point in which Linformer with E = I is not exact attention."""
    attention = made(length=L, rank=L, share_heads=True)
    with torch.no_grad():
        attention.compress_k.copy_(torch.eye(L))
    q, k, v = qkv()
    weights = (q @ k.mT / D**0.5).masked_fill(~mask()[:, None, None], 0.0).softmax(-1)
    zeroed = weights @ (v * mask()[:, None, :, None])
    torch.testing.assert_close(attention(q, k, v, mask()), zeroed, rtol=1e-12, atol=1e-12)
