"""Mechanisms of bands and blocks, and their inputs."""

import torch

from lra.attention.base import Sizes

N, H, D, LENGTH = 3, 2, 8, 48
REAL = (37, 20, 2)  # real tokens of the examples of a batch


def make(kind, value_dim=D, length=LENGTH, **knobs):
    torch.manual_seed(0)
    return kind(Sizes(heads=H, head_dim=D, value_dim=value_dim, length=length), **knobs).double().eval()


def qkv(L=37, value_dim=D, seed=1):
    generator = torch.Generator().manual_seed(seed)
    sizes = D, D, value_dim
    return [torch.randn(N, H, L, d, dtype=torch.float64, generator=generator).requires_grad_() for d in sizes]


def masks(L=37):
    """No mask, a suffix of padding, padding anywhere."""
    suffix = torch.arange(L) < torch.tensor(REAL)[:, None]
    holes = suffix & (torch.rand(suffix.shape, generator=torch.Generator().manual_seed(2)) < 0.6)
    holes[:, 1] = True
    return [None, suffix, holes]
