"""cosFormer against its weights written out pair by pair, in float64."""

import math

import torch
from support.features import PATTERNS, SIZES, H, L, masks, qkv

from lra.attention.cosformer import CosFormer


@PATTERNS
def test_is_its_definition(pattern):
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
    got, want = torch.stack(got), torch.stack(want)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)
    weight = torch.randn(want.shape, generator=torch.Generator().manual_seed(1), dtype=want.dtype)
    for a, b in zip(*(torch.autograd.grad((x * weight).sum(), (q, k, v)) for x in (got, want)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


def test_a_query_without_a_weight_gets_zero_and_a_finite_gradient():
    q, k, v = qkv()
    out = CosFormer(SIZES)(-q.abs(), k, v)
    assert (out == 0).all()
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), (q, k, v)))


def test_weights_do_not_depend_on_what_a_batch_is_padded_to():
    """As they would with the length of the batch for M, which is what the released code takes."""
    q, k, v = (x.detach() for x in qkv())
    mask = torch.arange(L)[None] < torch.tensor([5, 5, 5])[:, None]
    long = CosFormer(SIZES)(q, k, v, mask)[:, :, :5]
    torch.testing.assert_close(CosFormer(SIZES)(q[:, :, :5], k[:, :, :5], v[:, :, :5]), long, rtol=1e-12, atol=1e-12)
