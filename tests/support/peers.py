"""Helpers for comparisons with public implementations of mechanisms."""

import pytest
import torch
from support import features

from lra.attention.base import Sizes

N, L, H, D = 3, 48, 2, 8
DIM = H * D


def package(name):
    return pytest.importorskip(name, reason=f"{name.split('.')[0]} is not installed: make test-peers")


def make(kind, length=L, **options):
    return kind(Sizes(heads=H, head_dim=D, value_dim=D, length=length), **options).double().eval()


def split(*projected):
    """Split heads: (N,L,H D) -> (N,H,L,D)."""
    return [t.unflatten(-1, (H, D)).transpose(1, 2) for t in projected]


def merge(mixed):
    return mixed.transpose(1, 2).flatten(2)


def run(ours, peer, x, mask=None):
    """Our attention applied to the projections of a peer implementation."""
    return merge(ours(*split(peer.query(x), peer.key(x), peer.value(x)), mask))


def same(ours, theirs, rtol=1e-11, atol=1e-12):
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)


def same_with_gradients(ours, theirs, x):
    features.same_with_gradients(ours, theirs, [x], rtol=1e-11, atol=1e-12)


def tokens(length=L):
    return torch.randn(N, length, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()


def derived_qkv(x):
    """Distinct queries, keys and values derived from x without projections."""
    return split(x, 2 * x.flip(1), x.cos())


def first_real(length, *real):
    return torch.arange(length) < torch.tensor(real)[:, None]
