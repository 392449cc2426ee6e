"""LSH attention against a dense definition written from the paper (Kitaev et al. 2020, section 2 and appendix A)."""

import pytest
import torch
from support.features import LENGTH, D, masks, qkv, real_rows, same_with_gradients, sized

from lra.attention.reformer import Reformer


def sees(x, rotations, buckets, size, real, same_bucket):
    """x (L,D), rotations (D, buckets / 2), real positions -> which keys each position sees in one round, (L,L)."""
    turned = x @ rotations
    bucket = torch.cat([turned, -turned], -1).argmax(-1).tolist() if buckets > 1 else [0] * len(x)
    row = sorted(real, key=lambda t: (bucket[t], t))
    chunk = {t: place // size for place, t in enumerate(row)}
    table = torch.zeros(len(x), len(x), dtype=torch.float64)
    for i in real:
        for j in real:
            if chunk[i] - 1 <= chunk[j] <= chunk[i] and (not same_bucket or bucket[i] == bucket[j]):
                table[i, j] = 1
    return table


def oracle(made, x, v, mask, scope, power, unit_keys=True, own_last=True):
    out, L = [], x.shape[2]
    for n in range(len(x)):
        real = list(range(L)) if mask is None else mask[n].nonzero().flatten().tolist()
        for h in range(x.shape[1]):
            rounds = [
                sees(x[n, h].detach(), R, made.buckets, made.chunk, real, scope == "bucket") for R in made.rotations[h]
            ]
            times = sum(rounds)  # a key of several rounds counts in each of them, or once
            times = times.clamp(max=1) if scope == "bucket" else times
            if own_last:
                alone = times.sum(-1) == times.diagonal()
                times = torch.where(torch.eye(L, dtype=torch.bool) & ~alone[:, None], 0.0, times)
            keys = x[n, h] / x[n, h].norm(dim=-1, keepdim=True) if unit_keys else x[n, h]
            weights = (x[n, h] @ keys.T * D**power).exp() * times
            out.append(weights @ v[n, h] / weights.sum(-1, keepdim=True).clamp(min=1e-300))
    return torch.stack(out).view(*x.shape[:3], -1)


def check(made, **rules):
    for mask in masks(37).values():
        x, _, v = qkv(37)
        got, want = made(x, x, v, mask), oracle(made, x, v, mask, **rules)
        assert got.isfinite().all()
        same_with_gradients(real_rows(got, mask), real_rows(want, mask), (x, v))


@pytest.mark.parametrize("scope", ["chunk", "bucket"])
@pytest.mark.parametrize("hashes", [1, 2, 4])
@pytest.mark.parametrize(("chunk", "buckets"), [(4, None), (5, 6), (16, 2), (3, 16), (LENGTH, 1), (None, 1)])
def test_reformer(scope, hashes, chunk, buckets):
    check(sized(Reformer, hashes=hashes, chunk=chunk, buckets=buckets, scope=scope), scope=scope, power=-0.5)


@pytest.mark.parametrize("power", [0, 0.5])
@pytest.mark.parametrize("unit_keys", [True, False])
@pytest.mark.parametrize("own_last", [True, False])
def test_scores(power, unit_keys, own_last):
    rules = {"power": power, "unit_keys": unit_keys, "own_last": own_last, "scope": "chunk"}
    check(sized(Reformer, chunk=6, **rules), **rules)


def test_chunks_and_buckets_default_to_each_other():
    made = sized(Reformer, length=2048)
    assert (made.chunk, made.buckets) == (64, 64)  # the mean bucket holds half a chunk
    made = sized(Reformer, length=2048, chunk=None, buckets=10)
    assert (made.chunk, made.buckets) == (205, 10)
