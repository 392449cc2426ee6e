"""FNet, Fourier transforms in place of attention (Lee-Thorp et al., NAACL 2022)."""

import math

import torch
from torch import Tensor

from ..ops.precision import at_least_float32
from ..ops.segments import real_first
from .base import Mixer


class FNet(Mixer):
    """Re(F_seq(F_hidden(x))), the real part of the transform along features and positions (section 3.2).

    It has no parameters, no projections and no normalisation. The transform along positions is that of the real tokens
    alone, over their own number n, so that n rows hold the whole spectrum and padding is no part of it. Heads play no
    role. O(L log L) time.
    """

    hole_free = True

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = torch.fft.fft(at_least_float32(x), dim=-1)
        if mask is None:
            return torch.fft.fft(hidden, dim=1).real.to(x.dtype)
        order = real_first(mask)[..., None].expand_as(hidden)  # real tokens side by side, and back to their places
        mixed = dft(hidden.gather(1, order), mask.sum(-1)).real
        return torch.zeros_like(mixed).scatter(1, order, mixed).to(x.dtype)


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
