"""LSH attention against a dense definition written from the paper (Kitaev et al. 2020, section 2 and appendix A)."""

import pytest
import torch
from support.features import LENGTH, D, check, mean, sized

from lra.attention.reformer import Reformer


def sees(x, rotations, made, same_bucket):
    """Which real keys each real token x (n,D) sees in one round, (n,n); rotations (D, buckets / 2)."""
    turned = x @ rotations
    bucket = torch.cat([turned, -turned], -1).argmax(-1) if made.buckets > 1 else torch.zeros(len(x))
    chunk = bucket.argsort(stable=True).argsort() // made.chunk
    back = chunk[:, None] - chunk
    near = (back == 0) | (back == 1)
    return (near & (bucket[:, None] == bucket) if same_bucket else near).double()


def check_scores(made, scope, power, unit_keys=True, own_last=True):
    def oracle(h, at, q, k, v):
        times = sum(sees(q.detach(), R, made, scope == "bucket") for R in made.rotations[h])
        times = times.clamp(max=1) if scope == "bucket" else times  # a key of several rounds counts once, or in each
        if own_last:
            alone = times.sum(-1) == times.diagonal()
            times = torch.where(torch.eye(len(q), dtype=torch.bool) & ~alone[:, None], 0.0, times)
        keys = q / q.norm(dim=-1, keepdim=True) if unit_keys else q
        return mean((q @ keys.T * D**power).exp() * times, v)

    check(made, oracle, 37, shared=True)


@pytest.mark.parametrize("scope", ["chunk", "bucket"])
@pytest.mark.parametrize("hashes", [1, 2, 4])
@pytest.mark.parametrize(("chunk", "buckets"), [(4, None), (5, 6), (16, 2), (3, 16), (LENGTH, 1), (None, 1)])
def test_reformer(scope, hashes, chunk, buckets):
    check_scores(sized(Reformer, hashes=hashes, chunk=chunk, buckets=buckets, scope=scope), scope=scope, power=-0.5)


@pytest.mark.parametrize("power", [0, 0.5])
@pytest.mark.parametrize("unit_keys", [True, False])
@pytest.mark.parametrize("own_last", [True, False])
def test_scores(power, unit_keys, own_last):
    rules = {"power": power, "unit_keys": unit_keys, "own_last": own_last, "scope": "chunk"}
    check_scores(sized(Reformer, chunk=6, **rules), **rules)


def test_chunks_and_buckets_default_to_each_other():
    made = sized(Reformer, length=2048)
    assert (made.chunk, made.buckets) == (64, 64)  # the mean bucket holds half a chunk
    made = sized(Reformer, length=2048, chunk=None, buckets=10)
    assert (made.chunk, made.buckets) == (205, 10)
