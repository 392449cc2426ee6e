"""Diagonal linear state-space models, x_k = Λ̄ x_(k-1) + B̄ u_k and y_k = 2 Re(C x_k), as convolutions and as scans.

Shapes: B batch, H channels, L length, M or P complex states, one of each conjugate pair. Sources: S4D (Gu, Gupta, Goel
and Re 2022), S5 (Smith, Warrington and Linderman 2023), LRU (Orvieto et al. 2023).
"""

import itertools
import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..options import one_of
from .precision import full_precision

Discretisation = Literal["zoh", "bilinear"]
CHUNK = 16  # positions of a chunk of ``diagonal_scan``


def discretise(A: Tensor, step: Tensor, discretisation: Discretisation) -> tuple[Tensor, Tensor]:
    """Discretise x' = A x + B u with a diagonal A to x_k = Ā x_(k-1) + gain B u_k.

    ``zoh``, u constant over a step: Ā = exp(ΔA), gain = (Ā - 1) / A. ``bilinear``: Ā = (1 + ΔA/2) / (1 - ΔA/2),
    gain = Δ / (1 - ΔA/2).

    Args:
        A: complex, of any shape.
        step: Δ, of a shape that broadcasts with A.
        discretisation: ``zoh`` or ``bilinear``.

    Returns:
        log Ā and gain, both complex.

    Source: S4D, section 3.1.
    """
    one_of("discretisation", discretisation, Discretisation)
    step_A = step * A
    if discretisation == "zoh":
        gain = step_A.exp().sub(1) / A
        return step_A, gain
    log_A_bar = torch.log1p(step_A / 2) - torch.log1p(-step_A / 2)
    gain = step / (1 - step_A / 2)
    return log_A_bar, gain


def s4d_kernel(
    log_dt: Tensor,
    log_A_real: Tensor,
    A_imag: Tensor,
    C: Tensor,
    length: int,
    *,
    discretisation: Discretisation = "zoh",
) -> Tensor:
    """Compute the convolution kernel of a diagonal state-space model, K[l] = 2 Re Σ_n C_n B̄_n Ā_n^l, O(H M L) time.

    A = -exp(log_A_real) + i A_imag, Δ = exp(log_dt); Ā and B̄ / B come from ``discretise``.

    Args:
        log_dt: (H,).
        log_A_real: (H,M), or (1,M) if the channels share it.
        A_imag: (H,M) or (1,M).
        C: (H,M) complex, multiplied by B.
        length: L.
        discretisation: ``zoh`` or ``bilinear``.

    Returns:
        (H,L) real. Memory is O(H M √L).

    Source: S4D, sections 3.1 and 3.2.
    """
    # Ā and B̄ (eq. 3 and 4).
    A = torch.complex(-log_A_real.exp(), A_imag.to(log_A_real.dtype))  # (H or 1,M)
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
    fine = (log_power * steps).exp()  # Ā^j, (H,M,S)
    coarse = (log_power * (S * steps)).exp()  # Ā^(iS), (H,M,S)
    coarse = coarse * C_bar[..., None]
    kernel = 2 * (coarse.mT @ fine).real  # (H,S,S)
    return kernel.flatten(1)[:, :length]


def diagonal_scan(decay: Tensor, inputs: Tensor, *, reverse: bool = False) -> Tensor:
    """Compute the states x_k = decay x_(k-1) + u_k of every position, in O(B L P) time and memory.

    The gradient of u is the same scan in the other direction with the conjugate decay, so only the states are saved for
    the backward pass.

    Args:
        decay: (P,) complex, |decay| <= 1.
        inputs: u, (B,L,P) complex.
        reverse: x_k = decay x_(k+1) + u_k.

    Returns:
        (B,L,P) complex.
    """
    return _Scan.apply(decay, inputs, reverse)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, decay: Tensor, inputs: Tensor, reverse: bool) -> Tensor:
        states = _scan(decay, inputs, reverse)
        ctx.save_for_backward(decay, states)
        ctx.reverse = reverse
        return states

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        decay, states = ctx.saved_tensors
        grad = _scan(decay.conj(), grad, not ctx.reverse)
        # x_k depends on decay through decay * x_(k-1), or x_(k+1) in reverse.
        if ctx.reverse:
            now = grad[:, :-1]
            before = states[:, 1:]
        else:
            now = grad[:, 1:]
            before = states[:, :-1]
        ddecay = (now * before.conj()).sum((0, 1))  # (P,)
        return ddecay, grad, None


def _scan(decay: Tensor, inputs: Tensor, reverse: bool) -> Tensor:
    """Scan in two levels: inside chunks of ``CHUNK`` positions, and over the last states of the chunks.

    With S = CHUNK and chunk c, the last state of a chunk obeys a recurrence over chunks,

        x_(cS+S-1) = decay^S x_(cS-1) + Σ_j decay^(S-1-j) u_(cS+j)

    which is the same problem for L / S positions. Its solution is the state that enters each chunk, from which all
    chunks go through their positions at once. A tensor of (B,L,P) is so read twice and written once, instead of log2 L
    times by doubling (Hillis and Steele 1986).
    """
    num_batch, seq_len, num_states = inputs.shape
    num_padding = -seq_len % CHUNK if seq_len > CHUNK else 0
    # Padding comes last in the order of the scan.
    padding = (0, 0, num_padding, 0) if reverse else (0, 0, 0, num_padding)
    # F.pad copies, as the states are computed in place.
    states = F.pad(inputs, padding) if num_padding else inputs.clone()
    size = min(seq_len, CHUNK)
    chunks = states.view(num_batch, -1, size, num_states)  # (B,C,S,P)
    order = range(size - 1, -1, -1) if reverse else range(size)

    if chunks.shape[1] > 1:
        # The sums of the recurrence over chunks, (B,C,P).
        sums = torch.zeros_like(chunks[:, :, 0])
        for j in order:
            sums.mul_(decay).add_(chunks[:, :, j])
        last_states = _scan(decay**CHUNK, sums, reverse)
        # The state that enters a chunk is the last one of the chunk before.
        first = order[0]
        if reverse:
            chunks[:, :-1, first].addcmul_(decay, last_states[:, 1:])
        else:
            chunks[:, 1:, first].addcmul_(decay, last_states[:, :-1])

    # The recurrence inside all chunks at once.
    for previous, j in itertools.pairwise(order):
        chunks[:, :, j].addcmul_(decay, chunks[:, :, previous])
    return states[:, num_padding:] if reverse else states[:, :seq_len]


@full_precision
def diagonal_ssm(u: Tensor, decay: Tensor, b: Tensor, c: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute y_k = Re(C x_k), x_k = decay x_(k-1) + B u_k, a model of many inputs and outputs, in float32 at least.

    Args:
        u: (B,L,H) real.
        decay: (P,) complex, |decay| <= 1.
        b: (P,H,2) real and imaginary parts of B.
        c: (1 or 2,H,P,2) real and imaginary parts of C. The second C reads the states of a scan from the end of the
            sequence; the states of both scans include the token's own input.
        mask: (B,L), True = real. A masked input counts as 0; the state decays at its position.

    Returns:
        (B,L,H) real.
    """
    if mask is not None:
        u = u.masked_fill(~mask[..., None], 0)
    # B u, the real and imaginary parts next to each other.
    b_columns = b.permute(1, 0, 2).flatten(1)  # (H,2P)
    inputs = (u @ b_columns).unflatten(-1, (-1, 2))  # (B,L,P,2)
    inputs = torch.view_as_complex(inputs)  # (B,L,P)
    out = torch.zeros_like(u)
    for direction, c_part in enumerate(c):
        states = diagonal_scan(decay, inputs, reverse=direction == 1)
        # Re(C x) = Re C Re x - Im C Im x, as one product of real matrices.
        signs = c_part.new_tensor([1, -1])
        c_rows = (c_part * signs).flatten(-2)  # (H,2P)
        parts = torch.view_as_real(states).flatten(-2)  # (B,L,2P)
        out = out + parts @ c_rows.mT
    return out


def hippo_legs(n: int) -> tuple[Tensor, Tensor]:
    """Diagonalise the normal part of HiPPO-LegS, S = A + P Pᵀ = V Λ Vᴴ.

    A_ij = -√((2i+1)(2j+1)) below the diagonal, -(i+1) on it and 0 above; P_i = √(i + ½).

    Args:
        n: number of states.

    Returns:
        Λ (n,) complex128, real parts -½, imaginary parts ascending in conjugate pairs; V (n,n) complex128, unitary.

    Source: Gu et al. 2020 (HiPPO); the normal part is S4's (Gu, Goel and Re 2022), as DSS and S5 use it.
    """
    i = torch.arange(n, dtype=torch.float64)
    odd = 2 * i + 1
    outer = (odd[:, None] * odd).sqrt() / 2  # (n,n)
    # S + I/2 is skew-symmetric: A contributes -2 outer below the diagonal, P Pᵀ contributes outer everywhere.
    skew = outer.triu(1) - outer.tril(-1)
    # -i times a skew-symmetric matrix is Hermitian, with real eigenvalues.
    frequencies, vectors = torch.linalg.eigh(-1j * skew)
    real_part = torch.full_like(frequencies, -0.5)
    return torch.complex(real_part, frequencies), vectors


def fft_conv(u: Tensor, kernel: Tensor, mask: Tensor | None = None) -> Tensor:
    """Convolve each channel with its kernel by FFT, O(L log L).

    Args:
        u: (B,H,L) real.
        kernel: (H,L): lags 0 to L - 1, causal. Wider, (H,n): lag l at index l and lag -l, to the tokens ahead, at index
            n - l; the reaches to both sides and L may add up to n + 1 at most, as they do in (H,2L).
        mask: (B,L), True = real; a masked input counts as 0.

    Returns:
        (B,H,L), of the kernel's precision.
    """
    L = u.shape[-1]
    # A causal kernel is padded to 2 L, so that the circular convolution does not wrap around.
    n = 2 * L if kernel.shape[-1] == L else kernel.shape[-1]
    u = u.to(kernel.dtype)
    if mask is not None:
        u = u.masked_fill(~mask[:, None], 0)
    # A product of spectra is a circular convolution.
    spectrum = torch.fft.rfft(u, n) * torch.fft.rfft(kernel, n)
    convolved = torch.fft.irfft(spectrum, n)  # (B,H,n)
    return convolved[..., :L]


def both_ways(kernels: Tensor) -> Tensor:
    """Lay kernels out as ``fft_conv`` takes them.

    Args:
        kernels: (1,H,L): lags 0 to L - 1. (2,H,L): a second kernel over the tokens ahead, the next one first.

    Returns:
        (H,L) or (H,2L).
    """
    if len(kernels) == 1:
        return kernels[0]
    behind, ahead = kernels
    return torch.cat([behind, ahead.flip(-1)], -1)


@full_precision
def long_conv(x: Tensor, skip: Tensor, kernel: Callable[[int], Tensor], mask: Tensor | None = None) -> Tensor:
    """Compute y = K * x + D x for each channel, in float32 at least, the kernel too.

    Args:
        x: (B,L,H).
        skip: D (H,).
        kernel: function of a length that returns a kernel for ``fft_conv``.
        mask: (B,L), True = real; a masked token counts as 0 in the convolution.

    Returns:
        (B,L,H), of the kernel's precision.
    """
    filters = kernel(x.shape[1])  # (H,L or wider)
    convolved = fft_conv(x.mT, filters, mask).mT  # (B,L,H)
    return convolved + skip * x
