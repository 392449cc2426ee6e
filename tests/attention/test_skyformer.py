"""Skyformer against the Nyström product written out for one example and head, in float64."""

from functools import partial

import torch
from support.features import PATTERNS, SIZES, D, H, L, masks, qkv, real_rows, same_with_gradients

from lra.attention.skyformer import Skyformer
from lra.ops.pinv import cubic, exact

SAMPLES = 3  # queries, and as many keys


def made(**options):
    torch.manual_seed(0)
    return Skyformer(SIZES, samples=SAMPLES, **options).double().eval()


def kernel(a, b):
    return torch.stack([torch.stack([(-((x - y) ** 2).sum() / (2 * D**0.5)).exp() for y in b]) for x in a])


def oracle(skyformer, q, k, v, mask):
    out = torch.zeros_like(v)
    for n in range(len(q)):
        real = torch.arange(L) if mask is None else mask[n].nonzero().flatten()
        at = [real[int(u * len(real))] for u in skyformer.draw.tolist()]
        for h in range(H):
            s = torch.cat([q[n, h, at[:SAMPLES]], k[n, h, at[SAMPLES:]]])
            m = kernel(s, s) + skyformer.ridge * torch.eye(2 * SAMPLES, dtype=s.dtype)
            r = torch.diag(m.sum(1) ** -0.5)
            inverse = r @ torch.linalg.inv(r @ m @ r) @ r
            out[n, h] = kernel(q[n, h], s) @ inverse @ kernel(s, k[n, h, real]) @ v[n, h, real]
    return out


@PATTERNS
def test_is_its_definition(pattern):
    """With the true inverse; tests/ops/test_pinv.py compares the iteration with its recurrence."""
    skyformer, mask, x = made(pinv=exact), masks()[pattern], qkv()
    same_with_gradients(real_rows(skyformer(*x, mask), mask), real_rows(oracle(skyformer, *x, mask), mask), x)


def test_draws_anew_in_evaluation_if_asked():
    x, always = [t.detach() for t in qkv()], made(resample="always")
    assert not torch.equal(always(*x), always(*x))


def test_one_start_for_the_batch_is_announced():
    batch, x = made(pinv=partial(cubic, steps=1, init="batch")), [t.detach() for t in qkv()]
    assert batch.mixes_batch and not made().mixes_batch
    alone = torch.cat([batch(*(t[n : n + 1] for t in x)) for n in range(3)])  # one of them has the largest sum
    assert not torch.allclose(batch(*x), alone)
