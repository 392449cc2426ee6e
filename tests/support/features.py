"""Test inputs (queries, keys, values, masks) and comparison of mechanisms with a dense oracle, with gradients."""

import pytest
import torch
from conftest import config

from lra.attention.base import Sizes
from lra.data.datamodule import Batch

H, D, E, L = 2, 4, 3, 12
SIZES = Sizes(heads=H, head_dim=D, value_dim=E, length=16)
# Sequence length for banded and block-sparse mechanisms, and sizes for mixers of whole token vectors.
LENGTH = 48
TOKEN_SIZES = Sizes(heads=H, head_dim=D, value_dim=D, length=16)
PATTERNS = pytest.mark.parametrize("pattern", ["none", "suffix", "holes"])
# Overrides by prefix of the mechanism's name, for sequences of 24 tokens.
FITTING = {
    **dict.fromkeys(("cur_", "flashcur_", "mega_cur_", "soft_fixed"), "attn.count=8"),
    "nystrom": "attn.landmarks=8",
    **dict.fromkeys(("linformer", "transformer_ls"), "attn.rank=8"),
}


def sized(kind, length=LENGTH, **options):
    torch.manual_seed(0)
    return kind(Sizes(heads=H, head_dim=D, value_dim=E, length=length), **options).double().eval()


def qkv(L=L, E=E, spread=1.0):
    generator = torch.Generator().manual_seed(0)
    normal = lambda e: torch.randn(3, H, L, e, generator=generator, dtype=torch.float64)
    return tuple(x.requires_grad_() for x in (spread * normal(D), spread * normal(D), normal(E)))


def tokens(dim, L=L):
    return torch.randn(3, L, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()


def padded_ids(lengths, towers=1):
    """Token ids (B,T,L) from 1 to 15, padded with zeros behind the end of each sequence, and their mask."""
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None, None]).expand(-1, towers, -1)
    return torch.randint(1, 16, mask.shape, generator=torch.Generator().manual_seed(0)) * mask, mask


def build(name, *words):
    """Build a classifier in float64 and evaluation mode; the seed fixes its weights and its random draws."""
    torch.manual_seed(0)
    return config(name, *words).classifier().double().eval()


def model_and_batch(name, *words):
    """A float64 classifier of 24 tokens and a batch of two sequences, the second padded."""
    size_overrides = [word for start, word in FITTING.items() if name.startswith(start)]
    return build(name, "task.length=24", *size_overrides, *words), Batch(*padded_ids((24, 17)), torch.tensor([0, 1]))


def masks(L=L):
    """Masks (3,L): none, padding at the end, padding at random positions."""
    suffix = torch.arange(L) < torch.tensor([L, L // 2 + 1, 1])[:, None]
    scattered = suffix & (torch.rand(3, L, generator=torch.Generator().manual_seed(9)) < 0.6)
    scattered[:, 0] = True
    return {"none": None, "suffix": suffix, "holes": scattered}


def all_real(mask, L=L):
    """The mask, or a mask without padding if it is None."""
    return torch.ones(3, L, dtype=torch.bool) if mask is None else mask


def real_rows(x, mask):
    """Select real tokens: (N,H,L,E) -> (real,H,E)."""
    rows = x.transpose(1, 2)
    return rows.flatten(0, 1) if mask is None else rows[mask]


def check(mechanism, oracle, L=L, *, shared=False, spread=1.0, value_dim=E):
    """Compare a mechanism and its gradients with an oracle, with and without padding.

    oracle(h, index, q, k, v) computes a head from its real tokens: index (n,), q, k (n,D), v (n,E). shared: q is k.
    """
    for mask in masks(L).values():
        q, k, v = qkv(L, value_dim, spread)
        k = q if shared else k
        out, expected = mechanism(q, k, v, mask), []
        assert out.isfinite().all()
        for n, token_mask in enumerate(all_real(mask, L)):
            index = token_mask.nonzero()[:, 0]
            heads = [oracle(h, index, q[n, h, index], k[n, h, index], v[n, h, index]) for h in range(H)]
            expected.append(torch.stack(heads, 1))
        leaves = [q, v, *([] if shared else [k]), *mechanism.parameters()]
        same_with_gradients(real_rows(out, mask), torch.cat(expected), leaves)


def mean(weights, v):
    """Average v (n,E) with weights (n,n) normalised over keys; a query without weights gets zero."""
    return weights @ v / weights.sum(-1, keepdim=True).clamp(min=1e-300)


def same_with_gradients(actual, expected, leaves, rtol=1e-9, atol=1e-10):
    """Compare outputs and the gradients of a random linear function of them with respect to leaves."""
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=expected.dtype)
    scalars = [(x * weight).real.sum() for x in (actual, expected)]
    gradients = (torch.autograd.grad(scalar, leaves, retain_graph=True) for scalar in scalars)
    torch.testing.assert_close(*gradients, rtol=10 * rtol, atol=10 * atol)


def weights(q, k):
    """Unnormalised attention weights of one or more heads."""
    return (q @ k.mT / D**0.5).exp()


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def set_parameters(model, **parts):
    """Copy values into parameters or buffers by name; returns the model."""
    with torch.no_grad():
        for name, value in parts.items():
            getattr(model, name).copy_(value)
    return model


def s5_parts(p):
    """The parameters of S5 from those of the released module."""
    b, step = tensor(p["B"]), tensor(p["log_step"])[:, 0]
    parts = [p["C1"], p["C2"]] if "C1" in p else tensor(p["C"]).split(len(b), 1)
    c = torch.stack([torch.as_tensor(part, dtype=torch.float64) for part in parts])
    eigenvalues = {"decay": tensor(p["Lambda_re"]), "frequency": tensor(p["Lambda_im"])}
    return eigenvalues | {"log_step": step, "b": b, "c": c, "skip": tensor(p["D"])}
