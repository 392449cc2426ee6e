"""Queries, keys and values, masks, and the dense forms that mechanisms are compared with."""

import pytest
import torch

from lra.attention.base import Sizes

H, D, E, L = 2, 4, 3, 12
SIZES = Sizes(heads=H, head_dim=D, value_dim=E, length=16)
LENGTH = 48  # of mechanisms of bands and blocks
TOKEN_SIZES = Sizes(heads=H, head_dim=D, value_dim=D, length=16)  # of mixers of token vectors


def sized(kind, length=LENGTH, **options):
    torch.manual_seed(0)
    return kind(Sizes(heads=H, head_dim=D, value_dim=E, length=length), **options).double().eval()


def qkv(L=L, E=E, spread=1.0):
    generator = torch.Generator().manual_seed(0)
    normal = lambda e: torch.randn(3, H, L, e, generator=generator, dtype=torch.float64)
    return tuple(x.requires_grad_() for x in (spread * normal(D), spread * normal(D), normal(E)))


def tokens(dim, L=L):
    x = torch.randn(3, L, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return x.requires_grad_()


def masks(L=L):
    """No mask, a suffix of padding, padding anywhere."""
    suffix = torch.arange(L) < torch.tensor([L, L // 2 + 1, 1])[:, None]
    scattered = suffix & (torch.rand(3, L, generator=torch.Generator().manual_seed(9)) < 0.6)
    scattered[:, 0] = True
    return {"none": None, "suffix": suffix, "holes": scattered}


def all_real(mask, L=L):
    """The mask, or without one the mask of real tokens alone."""
    return torch.ones(3, L, dtype=torch.bool) if mask is None else mask


def real_rows(x, mask):
    """(N,H,L,E) -> (real,H,E), all rows without a mask."""
    rows = x.transpose(1, 2)
    return rows.flatten(0, 1) if mask is None else rows[mask]


def check(made, kernel, mask, normalise=True, spread=1.0):
    """The mechanism against sum_j kernel(q_i, k_j) v_j / sum_j kernel(q_i, k_j), one example, head and query at a time.

    kernel(h, q (D,), k (n,D), queries' features see every real key of the example) -> (n,)
    """
    q, k, v = qkv(spread=spread)
    out, rows, got = made(q, k, v, mask), [], []
    for n in range(3):
        real = torch.arange(L) if mask is None else mask[n].nonzero().flatten()
        for h in range(H):
            for i in real:
                weights = kernel(h, q[n, h, i], k[n, h, real])
                rows.append((weights / weights.sum() if normalise else weights) @ v[n, h, real])
                got.append(out[n, h, i])
    same_with_gradients(torch.stack(got), torch.stack(rows), [q, k, v, *made.parameters()])


def same_with_gradients(got, want, leaves):
    """Results and, for a random sum of them, the gradients of leaves."""
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)
    weight = torch.randn(want.shape, generator=torch.Generator().manual_seed(1), dtype=want.dtype)
    for a, b in zip(*(torch.autograd.grad((x * weight).real.sum(), leaves) for x in (got, want)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


def dense_factor(w, offsets):
    """A factor of PSF: w (n,K) -> W (n,n), W[i, (i + offset) mod n] += w[i, k]."""
    n, W = len(w), torch.zeros(len(w), len(w), dtype=w.dtype)
    for k, offset in enumerate(offsets):
        W[torch.arange(n), (torch.arange(n) + offset) % n] += w[:, k]
    return W


PATTERNS = pytest.mark.parametrize("pattern", ["none", "suffix", "holes"])
