"""FNet and its Fourier transforms of rows of several lengths, against sums written out and torch's transform."""

import cmath

import torch
from support.features import same_with_gradients

from lra.attention.base import Sizes
from lra.attention.fnet import FNet, dft

N, L, DIM = 4, 9, 4
MASK = torch.arange(L) < torch.tensor([L, 6, 1, 0])[:, None]
MASK[0, 4] = MASK[1, 0] = False


def matrix(n):
    rows = [[cmath.exp(-2j * cmath.pi * j * k / n) for j in range(n)] for k in range(n)]
    return torch.tensor(rows, dtype=torch.complex128).view(n, n)


def test_is_the_double_sum_over_the_real_tokens():
    x = torch.randn(N, L, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    made = FNet(Sizes(heads=1, head_dim=DIM, value_dim=DIM, length=16), dim=DIM)
    for mask in (None, MASK):
        want = torch.zeros(N, L, DIM, dtype=torch.float64)
        for n in range(N):
            real = torch.arange(L) if mask is None else mask[n].nonzero().flatten()
            want[n, real] = (matrix(len(real)) @ x[n, real].cdouble() @ matrix(DIM)).real
        same_with_gradients(made(x, mask), want, x)


def test_long_rows_are_as_exact_in_float32_as_a_transform_is():
    """Three transforms of twice the length in place of one: a few times its error, whatever the length."""
    x = torch.randn(2, 16384, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([16384, 9973])  # a power of two and a prime
    for row, n in enumerate(lengths.tolist()):
        want = torch.fft.fft(x[row, :n], dim=0)
        plain = (torch.fft.fft(x[row, :n].float(), dim=0) - want).norm()
        assert (dft(x.float(), lengths)[row, :n] - want).norm() < 10 * plain
