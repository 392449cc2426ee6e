"""S5 (Smith, Warrington and Linderman, ICLR 2023) and LRU (Orvieto et al., ICML 2023): linear recurrences.

One sequence u (L, H). The state x has P complex entries and a diagonal transition.

    x_k = Λ̄ x_k-1 + B̄ u_k,   y_k = Re(C x_k) + D u_k                                         (1)
    S5:  Λ̄ = exp(Δ Λ), B̄ = (Λ̄ - 1) / Λ · B, or the bilinear rule; C doubled, because one state of
         each conjugate pair is stored (S5, section 3 and appendix B)                         (2)
    LRU: Λ̄_j = exp(-exp(ν_j) + i exp(θ_j)), B̄ = exp(γ) B (LRU, sections 3.3 and 3.4)          (3)

The numbers are those of this list. A loop takes O(L P H) time; the papers use a parallel scan.
"""

import torch
from torch import Tensor


def recurrence(lambda_bar: Tensor, B_bar: Tensor, C: Tensor, u: Tensor, *, reverse: bool = False) -> Tensor:
    """Compute Re(C x_k), step 1 without D.

    Args:
        lambda_bar: Λ̄ (P,), complex.
        B_bar: (P, H), complex.
        C: (H, P), complex.
        u: (L, H), real.
        reverse: whether the states run from the last token to the first.

    Returns:
        (L, H), real.
    """
    inputs = u.flip(0) if reverse else u
    x = torch.zeros_like(lambda_bar)
    outputs = []
    for u_k in inputs:
        x = lambda_bar * x + B_bar @ u_k.to(B_bar.dtype)
        outputs.append((C @ x).real)
    y = torch.stack(outputs)
    return y.flip(0) if reverse else y


def bidirectional(lambda_bar: Tensor, B_bar: Tensor, C: list, D: Tensor, u: Tensor) -> Tensor:
    """Compute step 1, with a second read-out C_2 of the states of the reversed sequence if there is one.

    Args:
        lambda_bar, B_bar: see ``recurrence``.
        C: one or two matrices (H, P).
        D: (H,).
        u: (L, H).
    """
    y = D * u
    for direction, read_out in enumerate(C):
        y = y + recurrence(lambda_bar, B_bar, read_out, u, reverse=direction == 1)
    return y


def s5(u: Tensor, Lambda: Tensor, B: Tensor, C: list, D: Tensor, step: Tensor, *, method: str = "zoh") -> Tensor:
    """Compute an S5 layer without its gate.

    Args:
        u: (L, H).
        Lambda: eigenvalues Λ (P,), one of each conjugate pair.
        B: (P, H), complex.
        C: one matrix (H, P), or two for a bidirectional layer.
        D: (H,).
        step: Δ (P,).
        method: ``zoh`` | ``bilinear``.
    """
    if method == "zoh":
        lambda_bar = (step * Lambda).exp()
        gain = (lambda_bar - 1) / Lambda
    else:
        lambda_bar = (1 + step * Lambda / 2) / (1 - step * Lambda / 2)
        gain = step / (1 - step * Lambda / 2)
    doubled = [2 * read_out for read_out in C]
    return bidirectional(lambda_bar, gain[:, None] * B, doubled, D, u)


def lru(u: Tensor, nu: Tensor, theta: Tensor, gamma: Tensor, B: Tensor, C: list, D: Tensor) -> Tensor:
    """Compute an LRU layer without its gate.

    Args:
        u: (L, H).
        nu: logarithm of -log |λ|, (P,).
        theta: logarithm of the phase of λ, (P,).
        gamma: logarithm of the normalisation √(1 - |λ|²) at the start, (P,).
        B: (P, H), complex.
        C: one matrix (H, P), or two for a bidirectional layer.
        D: (H,).
    """
    lambda_bar = torch.complex(-nu.exp(), theta.exp()).exp()
    return bidirectional(lambda_bar, gamma.exp()[:, None] * B, C, D, u)
