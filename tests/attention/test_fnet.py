"""FNet against its double sum over positions and features, in float64."""

import cmath

import torch

from lra.attention.base import Sizes
from lra.attention.fnet import FNet

N, L, DIM = 3, 9, 4
MASK = torch.arange(L) < torch.tensor([L, 6, 1])[:, None]
MASK[0, 4] = MASK[1, 0] = False


def made():
    return FNet(Sizes(heads=1, head_dim=DIM, value_dim=DIM, length=16), dim=DIM)


def matrix(n):
    rows = [[cmath.exp(-2j * cmath.pi * j * k / n) for j in range(n)] for k in range(n)]
    return torch.tensor(rows, dtype=torch.complex128)


def test_is_the_double_sum_over_the_real_tokens():
    x = torch.randn(N, L, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    for mask in (None, MASK):
        want = torch.zeros(N, L, DIM, dtype=torch.float64)
        for n in range(N):
            real = torch.arange(L) if mask is None else mask[n].nonzero().flatten()
            want[n, real] = (matrix(len(real)) @ x[n, real].cdouble() @ matrix(DIM)).real
        got = made()(x, mask)
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
        weight = torch.randn(N, L, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        grads = [torch.autograd.grad((y * weight).sum(), x)[0] for y in (got, want)]
        torch.testing.assert_close(*grads, rtol=1e-12, atol=1e-12)


def test_has_no_parameters_and_keeps_dtypes():
    assert not list(made().parameters())
    x = torch.randn(N, L, DIM).bfloat16()
    for mask in (None, MASK):
        assert made()(x, mask).dtype is torch.bfloat16
