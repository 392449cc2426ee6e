"""Fourier transforms of rows that differ in length."""

import math

import torch
from torch import Tensor


def dft(x: Tensor, lengths: Tensor) -> Tensor:
    """Transform the first ``lengths`` entries of each row: X_k = Σ_j x_j exp(-2πi jk / n), j and k below n.

    Bluestein's algorithm (1970): with jk = (j² + k² - (k - j)²) / 2 the sum is a convolution with the chirp
    exp(iπ m² / n), whose size is the same for every n, so one FFT of 2 L entries is enough for all rows. j² is reduced
    modulo 2n as a whole number, which keeps the phase exact. O(L log L) time for each column.

    Args:
        x: rows (N,L,d), real or complex.
        lengths: n (N,), from 0 to L.

    Returns:
        (N,L,d) complex; zero from n on.
    """
    L, n = x.shape[1], lengths.clamp(min=1)[:, None]  # (N,1)
    j = torch.arange(L, device=x.device)
    phase = (j * j % (2 * n)).to(x.real.dtype) / n * math.pi  # (N,L)
    chirp = torch.polar(torch.ones_like(phase), phase)
    real = (j < lengths[:, None])[..., None]
    lags = torch.cat([chirp, torch.zeros_like(chirp[:, :1]), chirp[:, 1:].flip(1)], 1)  # 0 .. L-1, then -(L-1) .. -1
    inverse = chirp.conj()[..., None]
    product = torch.fft.fft(x * inverse * real, 2 * L, dim=1) * torch.fft.fft(lags, dim=1)[..., None]
    return torch.fft.ifft(product, dim=1)[:, :L] * inverse * real
