"""Diagonal linear state-space models, x_k = Λ̄ x_(k-1) + B̄ u_k and y_k = 2 Re(C x_k), as convolutions and as scans.

Shapes: B batch, H channels, L length, M or P complex states, one of each conjugate pair. Sources: S4D (Gu, Gupta, Goel
and Re 2022), S5 (Smith, Warrington and Linderman 2023), LRU (Orvieto et al. 2023).
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from ..options import one_of
from .precision import full_precision

Discretisation = Literal["zoh", "bilinear"]


def discretise(A: Tensor, step: Tensor, discretisation: Discretisation) -> tuple[Tensor, Tensor]:
    """Discretise x' = A x + B u with a diagonal A to x_k = z x_(k-1) + gain B u_k.

    ``zoh``, u constant over a step: z = exp(ΔA), gain = (z - 1) / A. ``bilinear``: z = (1 + ΔA/2) / (1 - ΔA/2),
    gain = Δ / (1 - ΔA/2).

    Args:
        A: complex, of any shape.
        step: Δ, of a shape that broadcasts with A's.
        discretisation: ``zoh`` | ``bilinear``.

    Returns:
        log z and gain, both complex.

    Source: S4D, section 3.1.
    """
    one_of("discretisation", discretisation, Discretisation)
    dt_a = step * A
    if discretisation == "zoh":
        return dt_a, dt_a.exp().sub(1) / A
    return torch.log1p(dt_a / 2) - torch.log1p(-dt_a / 2), step / (1 - dt_a / 2)


def s4d_kernel(
    log_step: Tensor,
    log_decay: Tensor,
    frequency: Tensor,
    c: Tensor,
    length: int,
    *,
    discretisation: Discretisation = "zoh",
) -> Tensor:
    """Compute the convolution kernel of a diagonal state-space model for each channel, K[l] = 2 Re Σ_m C̄_m z_m^l.

    A = -exp(log_decay) + i frequency, Δ = exp(log_step); z and C̄ / C are those of ``discretise``. Powers z^(i S + j),
    S ≈ √L, are products z^(iS) z^j, so the sum over states is one matrix product of (L/S, M) and (M, S) for each
    channel: O(H M √L) memory instead of O(H M L).

    Args:
        log_step: (H,).
        log_decay: (H,M), or (1,M) if the channels share it.
        frequency: (H,M) or (1,M).
        c: (H,M) complex, B folded in.
        length: L.
        discretisation: ``zoh`` | ``bilinear``.

    Returns:
        (H,L) real.

    Source: S4D, sections 3.1 and 3.2.
    """
    A = torch.complex(-log_decay.exp(), frequency.to(log_decay.dtype))  # (H or 1,M)
    log_z, gain = discretise(A, log_step.exp()[:, None], discretisation)
    c = c * gain
    side = math.isqrt(max(length - 1, 0)) + 1
    steps = torch.arange(side, device=c.device)
    fine = (log_z[..., None] * steps).exp()  # (H,M,S)
    coarse = (log_z[..., None] * (side * steps)).exp() * c[..., None]  # (H,M,S)
    return 2 * (coarse.mT @ fine).real.flatten(1)[:, :length]


def diagonal_scan(decay: Tensor, inputs: Tensor, *, reverse: bool = False) -> Tensor:
    """Compute the states x_k = decay x_(k-1) + u_k of every position, all at once.

    Doubling (Hillis and Steele 1986): after round r a position holds the sum over its last 2^r inputs, so ceil(log2 L)
    rounds are enough. The gradient of u is the same scan in the other direction with the conjugate decay; only the
    states are kept for it, O(B L P) memory.

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
        now, before = (grad[:, :-1], states[:, 1:]) if ctx.reverse else (grad[:, 1:], states[:, :-1])
        return (now * before.conj()).sum((0, 1)), grad, None


def _scan(decay: Tensor, inputs: Tensor, reverse: bool) -> Tensor:
    x, shift = inputs.clone(), 1
    while shift < x.shape[1]:
        if reverse:
            x[:, :-shift] += decay * x[:, shift:]  # the product is complete before it is added
        else:
            x[:, shift:] += decay * x[:, :-shift]
        decay, shift = decay * decay, 2 * shift
    return x


@full_precision
def diagonal_ssm(u: Tensor, decay: Tensor, b: Tensor, c: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute y_k = Re(C x_k), x_k = decay x_(k-1) + B u_k, a model of many inputs and outputs, in float32 at least.

    Args:
        u: (B,L,H) real.
        decay: (P,) complex, |decay| <= 1.
        b: (P,H,2) real, the parts of B.
        c: (1 or 2,H,P,2) real, the parts of C; the second one reads the states of a scan from the row's end, which
            include the token's own input as the first does.
        mask: (B,L), True = real; a masked input counts as 0 and the decay goes on.

    Returns:
        (B,L,H) real.
    """
    if mask is not None:
        u = u.masked_fill(~mask[..., None], 0)
    inputs = torch.view_as_complex((u @ b.permute(1, 0, 2).flatten(1)).unflatten(-1, (-1, 2)))  # (B,L,P)
    out = torch.zeros_like(u)
    for reverse, part in enumerate(c):
        states = diagonal_scan(decay, inputs, reverse=bool(reverse))
        # Re(C x) = Re C Re x - Im C Im x, as one product of real matrices
        out = out + torch.view_as_real(states).flatten(-2) @ (part * part.new_tensor([1, -1])).flatten(-2).mT
    return out


def hippo_legs(n: int) -> tuple[Tensor, Tensor]:
    """Diagonalise the normal part of HiPPO-LegS, S = A + P Pᵀ = V Λ Vᴴ.

    A_ij = -√((2i+1)(2j+1)) below the diagonal, -(i+1) on it and 0 above; P_i = √(i + ½).

    Args:
        n: states.

    Returns:
        Λ (n,) complex128, real parts -½, imaginary parts ascending in conjugate pairs; V (n,n) complex128, unitary.

    Source: Gu et al. 2020 (HiPPO); the normal part is S4's (Gu, Goel and Re 2022), as DSS and S5 use it.
    """
    i = torch.arange(n, dtype=torch.float64)
    outer = ((2 * i[:, None] + 1) * (2 * i + 1)).sqrt() / 2
    skew = outer.triu(1) - outer.tril(-1)  # S + I/2: A contributes -2 outer below the diagonal, P Pᵀ outer everywhere
    frequencies, vectors = torch.linalg.eigh(-1j * skew)
    return torch.complex(torch.full_like(frequencies, -0.5), frequencies), vectors


def fft_conv(u: Tensor, kernel: Tensor, mask: Tensor | None = None) -> Tensor:
    """Convolve each channel with its kernel by FFT, O(L log L).

    Args:
        u: (B,H,L) real.
        kernel: (H,L): lags 0 to L - 1, causal. Wider, (H,n): lag l at index l and lag -l, to the tokens ahead, at index
            n - l; the reaches to both sides and L may add up to n + 1 at the most, as they do in (H,2L).
        mask: (B,L), True = real; a masked input counts as 0.

    Returns:
        (B,H,L), of the kernel's precision.
    """
    L = u.shape[-1]
    n = 2 * L if kernel.shape[-1] == L else kernel.shape[-1]
    u = u.to(kernel.dtype)
    if mask is not None:
        u = u.masked_fill(~mask[:, None], 0)
    return torch.fft.irfft(torch.fft.rfft(u, n) * torch.fft.rfft(kernel, n), n)[..., :L]


def both_ways(kernels: Tensor) -> Tensor:
    """Lay kernels out as ``fft_conv`` takes them.

    Args:
        kernels: (1,H,L): of the lags 0 to L - 1. (2,H,L): a second one over the tokens ahead, the next one first.

    Returns:
        (H,L) or (H,2L).
    """
    return torch.cat([kernels[0], *(ahead.flip(-1) for ahead in kernels[1:])], -1)


@full_precision
def long_conv(x: Tensor, skip: Tensor, kernel: Callable[[int], Tensor], mask: Tensor | None = None) -> Tensor:
    """y = K * x + D x for each channel, in float32 at least, the kernel too.

    Args:
        x: (B,L,H).
        skip: D (H,).
        kernel: kernel of a length, as ``fft_conv`` takes it.
        mask: (B,L), True = real; a masked token counts as 0 in the convolution.

    Returns:
        (B,L,H), of the kernel's precision.
    """
    return fft_conv(x.mT, kernel(x.shape[1]), mask).mT + skip * x
