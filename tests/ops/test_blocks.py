"""Local, sparse, Longformer, BigBird and Sinkhorn attention against dense definitions written from their papers."""

import pytest
import torch
from support.features import D, H, masks, qkv, real_rows, same_with_gradients, sized

from lra.attention.bigbird import BigBird
from lra.attention.local import Local
from lra.attention.longformer import Longformer
from lra.attention.sinkhorn import Sinkhorn
from lra.attention.sparse import Sparse
from lra.ops import blocks


def dense(q, k, v, sees, mask=None):
    """Σ_j exp(q_i·k_j / √D) v_j over the real keys j that i sees, normalised; sees (L,L) or (N,H,L,L)."""
    real = torch.ones(len(q), q.shape[2], dtype=torch.bool) if mask is None else mask
    weights = (q @ k.mT * D**-0.5).exp() * (sees & real[:, None, None])
    return weights @ v / weights.sum(-1, keepdim=True).clamp(min=1e-300)


def check(made, want, L=37):
    """Output and gradients at real rows; want is a matrix of what each query sees, or a function of q, k, v, mask."""
    for mask in masks(L).values():
        x = qkv(L)
        got = made(*x, mask)
        assert got.isfinite().all()
        expected = want(*x, mask) if callable(want) else dense(*x, want, mask)
        same_with_gradients(real_rows(got, mask), real_rows(expected, mask), [*x, *made.parameters()])


def pairs(rule, L=37):
    """The matrix of rule(i, j)."""
    return torch.tensor([[rule(i, j) for j in range(L)] for i in range(L)])


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (3, H)])
def test_a_query_without_a_key_gets_zero_and_no_gradient(shape):
    q, k, v = (t.unflatten(2, (2, 4)) for t in qkv(8))
    allowed = torch.rand(*shape, 2, 4, 4) < 0.5
    allowed[:, :, 1, 2] = False
    scores = q @ k.mT * D**-0.5
    part = blocks.weigh(scores, v, allowed)
    for out in (blocks.attend(q, k, v, allowed), blocks.merge([part])):
        assert (out[:, :, 1, 2] == 0).all()
        weights = scores.exp() * allowed
        torch.testing.assert_close(out, weights @ v / weights.sum(-1, keepdim=True).clamp(min=1e-300))
        for grad in torch.autograd.grad(out.sum(), (q, k, v), retain_graph=True):
            assert grad.isfinite().all()
        assert (torch.autograd.grad(out.sum(), q, retain_graph=True)[0][:, :, 1, 2] == 0).all()


def test_merged_parts_are_one_softmax_however_far_apart_their_scores():
    scores, v = torch.randn(5, 12, dtype=torch.float64) * 300, torch.randn(12, 4, dtype=torch.float64)
    allowed = torch.rand(5, 12) < 0.5
    allowed[:, 3], allowed[0, 6:] = True, False
    halves = [blocks.weigh(scores[:, s], v[s], allowed[:, s]) for s in (slice(6), slice(6, 12))]
    want = scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ v
    torch.testing.assert_close(blocks.merge(halves), want)


@pytest.mark.parametrize("block", [1, 5, 8, 37])
def test_local_contiguous(block):
    check(sized(Local, block=block), pairs(lambda i, j: i // block == j // block))


@pytest.mark.parametrize(("block", "stride"), [(5, 10), (8, 7), (7, 7), (12, 5)])
def test_local_strided_as_released(block, stride):
    """length 48, filled up to 50, 56 (8 divides 48), 49, 60 (12 divides 48)."""
    check(sized(Local, block=block, grouping="strided"), pairs(lambda i, j: i % stride == j % stride))


@pytest.mark.parametrize("stride", [1, 4, 7, None])
@pytest.mark.parametrize("causal", [False, True])
def test_sparse_strided(stride, causal):
    l = stride or 7  # √48

    def sees(i, j):
        if causal:
            return j <= i and (i - j < l or (i - j) % l == 0)
        return i - (l - 1) // 2 <= j <= i + l // 2 or (i - j) % l == 0

    check(sized(Sparse, stride=stride, causal=causal), pairs(sees))


@pytest.mark.parametrize(("block", "summary"), [(5, 1), (6, 2), (8, 8), (50, 10)])
@pytest.mark.parametrize("causal", [False, True])
def test_sparse_fixed(block, summary, causal):
    def sees(i, j):
        listed = i // block == j // block or j % block == 0 or j % block >= block - summary
        return listed and (j <= i or not causal)

    check(sized(Sparse, pattern="fixed", block=block, summary=summary, causal=causal), pairs(sees))


@pytest.mark.parametrize("window", [1, 2, 5, 12, 64])
@pytest.mark.parametrize("global_tokens", [0, 1, 3, 40])
def test_longformer(window, global_tokens):
    def sees(i, j):
        return i - (window - 1) // 2 <= j <= i + window // 2 or i < global_tokens or j < global_tokens

    check(sized(Longformer, window=window, global_tokens=global_tokens), pairs(sees))


def test_longformer_default_window_is_255_left_and_256_right():
    made, L = sized(Longformer, length=600), 600
    q, k, v = qkv(L)
    i, j = torch.arange(L)[:, None], torch.arange(L)
    torch.testing.assert_close(made(q, k, v), dense(q, k, v, (j >= i - 255) & (j <= i + 256)), rtol=1e-9, atol=1e-11)


def bigbird_sees(made, block, window, random, mask, L=37):
    sees = torch.zeros(3, H, L, L, dtype=torch.bool)
    for n in range(3):
        last = (L - 1 if mask is None else int(mask[n].nonzero().max())) // block
        for h in range(H):
            for i in range(last + 1):
                near = {j for j in range(i - window // 2, i + window // 2 + 1) if 0 <= j <= last} | {0, last}
                others = [j for j in range(last + 1) if j not in near]
                chosen = near | set(sorted(others, key=lambda j: -made.draw[h, i, j])[:random])
                chosen = set(range(last + 1)) if i in (0, last) else chosen
                for j in chosen:
                    sees[n, h, i * block : (i + 1) * block, j * block : (j + 1) * block] = True
    return sees


@pytest.mark.parametrize(("block", "window", "random"), [(4, 3, 3), (4, 1, 2), (3, 5, 0), (10, 3, 3), (64, 3, 3)])
def test_bigbird(block, window, random):
    made = sized(BigBird, block=block, window=window, random=random)
    check(made, lambda q, k, v, mask: dense(q, k, v, bigbird_sees(made, block, window, random, mask), mask))


def sinkhorn_dense(made, q, k, v, mask, iterations, temperature, block):
    L = q.shape[2]
    out = torch.zeros_like(v)
    for n in range(len(q)):
        real = set(range(L)) if mask is None else set(mask[n].nonzero().flatten().tolist())
        places = [[t for t in range(B * block, (B + 1) * block) if t in real] for B in range(-(-L // block))]
        used = [B for B, tokens in enumerate(places) if tokens]
        for h in range(q.shape[1]):
            pooled = torch.stack([k[n, h, places[B]].sum(0) for B in used])
            sort = (pooled @ made.weight[h, :, used] + made.bias[h, 0, used]) / temperature
            sort = sort.softmax(1) if not iterations else sort.exp()
            for _ in range(iterations):
                sort = sort / sort.sum(1, keepdim=True)
                sort = sort / sort.sum(0, keepdim=True)
            for a, A in enumerate(used):
                keys, values = [k[n, h, t] for t in places[A]], [v[n, h, t] for t in places[A]]
                for t in range(block):
                    sources = [(b, B * block + t) for b, B in enumerate(used) if B * block + t in real]
                    if sources:
                        keys.append(sum(sort[a, b] * k[n, h, s] for b, s in sources))
                        values.append(sum(sort[a, b] * v[n, h, s] for b, s in sources))
                keys, values = torch.stack(keys), torch.stack(values)
                for t in places[A]:
                    out[n, h, t] = (keys @ q[n, h, t] * D**-0.5).softmax(0) @ values
    return out


@pytest.mark.parametrize(
    ("iterations", "temperature", "block"), [(0, 1.0, 4), (0, 0.5, 4), (1, 1.0, 4), (8, 0.75, 4), (2, 1.0, 16)]
)
def test_sinkhorn(iterations, temperature, block):
    made = sized(Sinkhorn, length=16, block=block, iterations=iterations, temperature=temperature)
    check(made, lambda *x: sinkhorn_dense(made, *x, iterations, temperature, block), L=14)


def test_rounded_square_root_is_the_default_stride():
    assert [sized(Sparse, length=n).stride for n in (128, 1024, 2048, 4096)] == [11, 32, 45, 64]
