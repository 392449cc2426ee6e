"""Queries, keys and values, masks, and the dense forms that mechanisms are compared with."""

import pytest
import torch
from conftest import config

from lra.attention.base import Sizes
from lra.data.datamodule import Batch

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


def padded_ids(lengths, towers=1):
    """Token ids (B,T,L) from 1 to 15, zero behind the end of each row, and their mask."""
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None, None]).expand(-1, towers, -1)
    return torch.randint(1, 16, mask.shape, generator=torch.Generator().manual_seed(0)) * mask, mask


FITTING = {  # 24 tokens
    **dict.fromkeys(("cur_", "flashcur_", "mega_cur_", "soft_fixed"), "attn.count=8"),
    "nystrom": "attn.landmarks=8",
    **dict.fromkeys(("linformer", "transformer_ls"), "attn.rank=8"),
}


def model_and_batch(name, *words):
    """A classifier of rows of 24 tokens in float64, and two of them, the second padded."""
    torch.manual_seed(0)
    fitting = [word for start, word in FITTING.items() if name.startswith(start)]
    model = config(name, "task.length=24", *fitting, *words).classifier().double().eval()
    return model, Batch(*padded_ids((24, 17)), torch.tensor([0, 1]))


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


def check(made, oracle, L=L, *, shared=False, spread=1.0, value_dim=E):
    """The mechanism and its gradients against ``oracle`` of each head of an example, without padding and with it.

    oracle(h, at, q, k, v) has the real tokens of one head, at positions ``at`` (n,): q, k (n,D), v (n,E) -> (n,E).
    shared: one projection serves queries and keys.
    """
    for mask in masks(L).values():
        q, k, v = qkv(L, value_dim, spread)
        k = q if shared else k
        out, want = made(q, k, v, mask), []
        assert out.isfinite().all()
        for n, real in enumerate(all_real(mask, L)):
            at = real.nonzero()[:, 0]
            heads = [oracle(h, at, q[n, h, at], k[n, h, at], v[n, h, at]) for h in range(H)]
            want.append(torch.stack(heads, 1))
        leaves = [q, v, *([] if shared else [k]), *made.parameters()]
        same_with_gradients(real_rows(out, mask), torch.cat(want), leaves)


def mean(weights, v):
    """Rows of v (n,E) weighted by (n,n) in proportion; a query without a weight gets zero."""
    return weights @ v / weights.sum(-1, keepdim=True).clamp(min=1e-300)


def same_with_gradients(got, want, leaves):
    """Results and, for a random sum of them, the gradients of leaves."""
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)
    weight = torch.randn(want.shape, generator=torch.Generator().manual_seed(1), dtype=want.dtype)
    gradients = (torch.autograd.grad((x * weight).real.sum(), leaves) for x in (got, want))
    torch.testing.assert_close(*gradients, rtol=1e-7, atol=1e-9)


PATTERNS = pytest.mark.parametrize("pattern", ["none", "suffix", "holes"])
