"""Diagonal linear state-space models, x_k = Λ̄ x_(k-1) + B̄ u_k and y_k = 2 Re(C x_k), as convolutions.

Shapes: B batch, H channels, L length, M complex states, one of each conjugate pair. Source: S4D (Gu, Gupta, Goel and Re
2022). ``lra.ops.diagonal_recurrence`` has diagonal models as scans (S5, LRU).
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Complex, Float
from torch import Tensor

from ..options import require_choice
from .precision import full_precision

Discretisation = Literal["zoh", "bilinear"]


def discretise(
    A: Complex[Tensor, "..."],
    step: Float[Tensor, "..."],
    discretisation: Discretisation,
) -> tuple[Complex[Tensor, "*states"], Complex[Tensor, "*states"]]:
    """Discretise x' = A x + B u with a diagonal A: x_k = Ā x_(k-1) + gain B u_k.

    ``zoh``, u constant over a step: Ā = exp(ΔA), gain = (Ā - 1) / A. ``bilinear``: Ā = (1 + ΔA/2) / (1 - ΔA/2),
    gain = Δ / (1 - ΔA/2).

    Args:
        A: diagonal of A.
        step: Δ, of a shape that broadcasts with A.
        discretisation: ``zoh`` or ``bilinear``.

    Returns:
        log Ā, up to multiples of 2πi, and gain.

    Source: S4D, section 3.1.
    """
    require_choice("discretisation", discretisation, Discretisation)
    step_A = step * A
    if discretisation == "zoh":
        # expm1 keeps the digits of a small ΔA.
        gain = torch.expm1(step_A) / A
        return step_A, gain
    log_numerator = torch.log1p(step_A / 2)
    log_denominator = torch.log1p(-step_A / 2)
    log_A_bar = log_numerator - log_denominator
    gain = step / (1 - step_A / 2)
    return log_A_bar, gain


def s4d_kernel(
    log_dt: Float[Tensor, "H"],
    log_A_real: Float[Tensor, "#H M"],
    A_imag: Float[Tensor, "#H M"],
    C: Complex[Tensor, "H M"],
    length: int,
    *,
    discretisation: Discretisation = "zoh",
) -> Float[Tensor, "H length"]:
    """Compute the convolution kernel of a diagonal state-space model, K[l] = 2 Re Σ_n C_n B̄_n Ā_n^l, O(H M L) time.

    A = -exp(log_A_real) + i A_imag, Δ = exp(log_dt); Ā and B̄ / B come from ``discretise``. Memory is O(H M √L + H L).

    Args:
        log_dt: log Δ of each channel.
        log_A_real: log(-Re A); one row if the channels share A.
        A_imag: imaginary parts of A.
        C: output map, multiplied by B.
        length: L.
        discretisation: ``zoh`` or ``bilinear``.

    Source: S4D, sections 3.1 and 3.2.
    """
    # Ā and B̄ / B (steps 2 and 3 of lra/reference/s4d.py).
    A_imag = A_imag.to(log_A_real.dtype)
    A = torch.complex(-log_A_real.exp(), A_imag)  # (H or 1,M)
    dt = log_dt.exp()[:, None]  # (H,1)
    log_A_bar, gain = discretise(A, dt, discretisation)  # (H,M)
    C_bar = C * gain  # C̄, (H,M)

    # Every lag is l = i S + j with coarse i < S, fine j < S and S = ceil(√L). So Ā^l = Ā^(iS) Ā^j and
    #
    #     K[iS + j] = 2 Re Σ_n (C̄_n Ā_n^(iS)) Ā_n^j
    #
    # is for each channel the product of an S x M matrix of coarse powers and an M x S matrix of fine powers, with 2 M S
    # entries instead of the M L of the Vandermonde matrix. Powers are exp(l log Ā), so errors do not accumulate.
    S = math.isqrt(max(length - 1, 0)) + 1
    steps = torch.arange(S, device=C.device)
    log_power = log_A_bar[..., None]  # (H,M,1)
    log_fine = log_power * steps
    log_coarse = log_power * (S * steps)
    fine = log_fine.exp()  # Ā^j, (H,M,S)
    coarse = log_coarse.exp()  # Ā^(iS), (H,M,S)
    coarse = coarse * C_bar[..., None]
    products = coarse.mT @ fine  # (H,S,S)
    kernel = 2 * products.real
    return kernel.flatten(1)[:, :length]


def hippo_legs(n: int) -> tuple[Complex[Tensor, "n"], Complex[Tensor, "n n"]]:
    """Diagonalise the normal part of HiPPO-LegS, S = A + P Pᵀ = V Λ Vᴴ.

    A_ij = -√((2i+1)(2j+1)) below the diagonal, -(i+1) on it and 0 above; P_i = √(i + ½).

    Args:
        n: number of states.

    Returns:
        Λ, with real parts -½ and ascending imaginary parts, symmetric about 0, and the unitary V; both complex128.

    Source: Gu et al. 2020 (HiPPO); the normal part is S4's (Gu, Goel and Re 2022), as DSS and S5 use it.
    """
    i = torch.arange(n, dtype=torch.float64)
    odd = 2 * i + 1
    products = odd[:, None] * odd  # (n,n)
    outer = products.sqrt() / 2
    # S + I/2 is skew-symmetric: A contributes -2 outer below the diagonal, P Pᵀ contributes outer everywhere.
    skew = outer.triu(1) - outer.tril(-1)
    # A real skew-symmetric matrix times -i is Hermitian, so its eigenvalues are real.
    frequencies, vectors = torch.linalg.eigh(-1j * skew)
    real_part = torch.full_like(frequencies, -0.5)
    eigenvalues = torch.complex(real_part, frequencies)
    return eigenvalues, vectors


def fft_conv(
    u: Float[Tensor, "B H L"],
    kernel: Float[Tensor, "H n"],
    mask: Bool[Tensor, "B L"] | None = None,
) -> Float[Tensor, "B H L"]:
    """Convolve each channel with its kernel by FFT, O(L log L).

    Args:
        u: inputs.
        kernel: n = L: lags 0 to L - 1, causal. Wider: lag l at index l and lag -l, to the tokens ahead, at index n - l;
            L plus the largest lag to either side must not exceed n, so n = 2 L has room for L lags to each side.
        mask: True = real; a masked input counts as 0.

    Returns:
        The outputs, of the kernel's precision.
    """
    L = u.shape[-1]
    width = kernel.shape[-1]
    # A causal kernel is padded to 2 L, so that the circular convolution does not wrap around.
    n = 2 * L if width == L else width
    u = u.to(kernel.dtype)
    if mask is not None:
        u = u.masked_fill(~mask[:, None], 0)
    # A product of spectra is a circular convolution.
    input_spectrum = torch.fft.rfft(u, n)
    kernel_spectrum = torch.fft.rfft(kernel, n)
    spectrum = input_spectrum * kernel_spectrum
    convolved = torch.fft.irfft(spectrum, n)  # (B,H,n)
    return convolved[..., :L]


def pack_bidirectional(kernels: Float[Tensor, "directions H L"]) -> Float[Tensor, "H n"]:
    """Lay kernels out as ``fft_conv`` takes them: n = L for one direction, n = 2 L for two.

    Args:
        kernels: lags 0 to L - 1; for two directions, a second kernel over the tokens ahead, the next one first.
    """
    if len(kernels) == 1:
        return kernels[0]
    behind, ahead = kernels
    reversed_ahead = ahead.flip(-1)
    return torch.cat([behind, reversed_ahead], -1)


@full_precision
def long_conv(
    x: Float[Tensor, "B L H"],
    skip: Float[Tensor, "H"],
    kernel: Callable[[int], Tensor],
    mask: Bool[Tensor, "B L"] | None = None,
) -> Float[Tensor, "B L H"]:
    """Compute y = K * x + D x for each channel, in float32 or wider and with autocast off, also for the kernel.

    Args:
        x: inputs.
        skip: D.
        kernel: function of a length that returns a kernel for ``fft_conv``.
        mask: True = real; a masked token counts as 0 in the convolution.

    Returns:
        The outputs, in the wider dtype of the kernel and D x.
    """
    filters = kernel(x.shape[1])  # (H,L or wider)
    convolved = fft_conv(x.mT, filters, mask)  # (B,H,L)
    return convolved.mT + skip * x
