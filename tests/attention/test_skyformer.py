"""Skyformer against the Nyström product written out for one example and head, in float64."""

from functools import partial

import pytest
import torch
from support.features import PATTERNS, SIZES, D, H, L, masks, qkv, same_with_gradients

from lra.attention.skyformer import Skyformer
from lra.ops.pinv import cubic, exact

SAMPLES = 3  # queries, and as many keys


def made(**options):
    torch.manual_seed(0)
    return Skyformer(SIZES, **({"samples": SAMPLES} | options)).double().eval()


def kernel(a, b):
    return torch.stack([torch.stack([(-((x - y) ** 2).sum() / (2 * D**0.5)).exp() for y in b]) for x in a])


def iterated(m):
    """Six steps of the published iteration, one matrix."""
    eye = torch.eye(len(m), dtype=m.dtype)
    z = m.T / m.sum(0).max()
    for _ in range(6):
        z = 0.25 * z @ (13 * eye - m @ z @ (15 * eye - m @ z @ (7 * eye - m @ z)))
    return z


def oracle(skyformer, q, k, v, mask, inverse):
    out = torch.zeros_like(v)
    for n in range(len(q)):
        real = torch.arange(L) if mask is None else mask[n].nonzero().flatten()
        at = [real[int(u * len(real))] for u in skyformer.draw.tolist()]
        for h in range(H):
            s = torch.cat([q[n, h, at[:SAMPLES]], k[n, h, at[SAMPLES:]]])
            m = kernel(s, s) + skyformer.ridge * torch.eye(2 * SAMPLES, dtype=s.dtype)
            r = torch.diag(m.sum(1) ** -0.5)
            out[n, h] = kernel(q[n, h], s) @ r @ inverse(r @ m @ r) @ r @ kernel(s, k[n, h, real]) @ v[n, h, real]
    return out


@PATTERNS
@pytest.mark.parametrize(("pinv", "inverse"), [(exact, torch.linalg.inv), (partial(cubic, steps=6), iterated)])
def test_is_its_definition(pattern, pinv, inverse):
    skyformer, mask, x = made(pinv=pinv), masks()[pattern], qkv()
    got, want = skyformer(*x, mask), oracle(skyformer, *x, mask, inverse)
    real = torch.ones(3, H, L, dtype=torch.bool) if mask is None else mask[:, None].expand(-1, H, -1)
    same_with_gradients(got[real], want[real], x)


def test_all_tokens_as_landmarks_are_gaussian_kernel_attention():
    skyformer = made(samples=L, ridge=0.0, pinv=exact)
    skyformer.draw.copy_((torch.arange(2 * L) % L + 0.5) / L)
    q, k, v = (x.detach() for x in qkv(spread=2.0))
    want = (-torch.cdist(q, k).square() / (2 * D**0.5)).exp() @ v
    torch.testing.assert_close(skyformer(q, k, v), want, rtol=1e-8, atol=1e-8)


def test_draws_anew_while_training_and_if_asked_in_evaluation():
    x = [t.detach() for t in qkv()]
    once, always = made(), made(resample="always")
    assert torch.equal(once(*x), once(*x)) and not torch.equal(always(*x), always(*x))
    assert not torch.equal(once.train()(*x), once(*x))


def test_one_start_for_the_batch_is_announced():
    batch = made(pinv=partial(cubic, steps=1, init="batch"))
    x = [t.detach() for t in qkv()]
    assert batch.mixes_batch and not made().mixes_batch
    alone = torch.cat([batch(*(t[n : n + 1] for t in x)) for n in range(3)])  # one of them has the largest sum
    assert not torch.allclose(batch(*x), alone)
