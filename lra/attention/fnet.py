"""FNet, Fourier transforms instead of attention (Lee-Thorp et al., NAACL 2022)."""

import math

import torch
from jaxtyping import Bool, Complex, Float, Inexact, Int
from torch import Tensor

from ..ops.precision import upcast
from ..ops.segment_means import argsort_valid_first
from .base import Mixer


class FNet(Mixer):
    """Re(F_seq(F_hidden(x))), the real part of the two-dimensional DFT of a sequence (eq. 3), O(L d log(L d)) time.

    FNet has no parameters, projections or normalisation, and ignores heads. The transform along the sequence covers
    the n real tokens only and has length n, so padding does not change the spectrum. In plain torch:
    ``lra/reference/fnet.py``.
    """

    compactable = True

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        x_wide = upcast(x)
        if mask is None:
            spectrum = torch.fft.fftn(x_wide, dim=(1, 2))  # (N,L,d)
            mixed = spectrum.real
        elif x.device.type == "cpu":
            mixed = _transform_each(x_wide, mask)
        else:
            mixed = _transform_batch(x_wide, mask)
        return mixed.to(x.dtype)


def _transform_each(
    x: Float[Tensor, "N L d"],
    mask: Bool[Tensor, "N L"],
) -> Float[Tensor, "N L d"]:
    """Transform the real tokens of each sequence in a loop, on a CPU.

    An accelerator runs ``_transform_batch``: here the lengths become Python integers, for which it would have to wait.
    """
    tokens = mask.flatten().nonzero()[:, 0]  # (T,)
    packed = x.flatten(0, 1).index_select(0, tokens)  # (T,d)

    # One transform for each sequence that has real tokens.
    lengths = mask.sum(-1).tolist()
    spectra = []
    for sequence in packed.split(lengths):
        if len(sequence):
            spectrum = torch.fft.fftn(sequence, dim=(0, 1))
            spectra.append(spectrum.real)
    if not spectra:
        return x * 0

    # Back to the positions of the real tokens.
    mixed = torch.zeros_like(x).flatten(0, 1)  # (N L,d)
    mixed = mixed.index_copy(0, tokens, torch.cat(spectra))
    return mixed.view_as(x)


def _transform_batch(
    x: Float[Tensor, "N L d"],
    mask: Bool[Tensor, "N L"],
) -> Float[Tensor, "N L d"]:
    """Transform the real tokens of all sequences by operations of fixed shape."""
    hidden = torch.fft.fft(x, dim=-1)
    # Real tokens first, in their order.
    order = argsort_valid_first(mask)  # (N,L)
    order = order[..., None].expand_as(hidden)
    packed = hidden.gather(1, order)
    mixed = dft(packed, mask.sum(-1)).real
    return torch.zeros_like(mixed).scatter(1, order, mixed)


def dft(
    x: Inexact[Tensor, "N L d"],
    lengths: Int[Tensor, " N"],
) -> Complex[Tensor, "N L d"]:
    """Transform the first n entries of each sequence, X_k = Σ_j x_j exp(-2πi jk / n) for j, k < n, in O(L log L).

    With jk = (j² + k² - (k - j)²) / 2 the sum is a convolution with the chirp w_m = exp(iπ m² / n):

        X_k = w̄_k Σ_j (x_j w̄_j) w_(k - j)

    The convolution has the same size for every n, so FFTs of 2 L entries serve all sequences.

    Args:
        x: real or complex sequences.
        lengths: n of each sequence, from 0 to L.

    Returns:
        The transforms, zero from n on.

    Source: Bluestein 1970.
    """
    L = x.shape[1]
    n = lengths.clamp(min=1)[:, None]  # (N,1)
    j = torch.arange(L, device=x.device)

    # The chirp. Reducing the integer j² modulo 2n keeps the phase below 2π, so it loses no digits.
    remainder = j * j % (2 * n)  # (N,L)
    phase = remainder.to(x.real.dtype) / n * math.pi
    chirp = torch.polar(torch.ones_like(phase), phase)
    conjugate = chirp.conj()[..., None]  # (N,L,1)

    # w_m for the lags m = 0 .. L-1, one zero, and w_m for m = -(L-1) .. -1, where w_m = w_(-m).
    zero = torch.zeros_like(chirp[:, :1])
    negative = chirp[:, 1:].flip(1)
    lags = torch.cat([chirp, zero, negative], 1)  # (N,2L)

    # The circular convolution by FFT.
    is_real = j < lengths[:, None]  # (N,L)
    is_real = is_real[..., None]
    spectrum = torch.fft.fft(x * conjugate * is_real, 2 * L, dim=1)  # (N,2L,d)
    chirp_spectrum = torch.fft.fft(lags, dim=1)  # (N,2L)
    product = spectrum * chirp_spectrum[..., None]
    convolved = torch.fft.ifft(product, dim=1)[:, :L]  # (N,L,d)
    return convolved * conjugate * is_real
