"""Inputs of the mechanisms that pack a row."""

import torch

N, L, DIM, HEADS, ROWS = 2, 9, 8, 2, 3


def x(seed=1):
    return torch.randn(N, L, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def mask():
    real = torch.ones(N, L, dtype=torch.bool)
    real[0, [0, 4]], real[1, 6:] = False, False
    return real
