"""S5 (Smith, Warrington and Linderman, ICLR 2023) and LRU (Orvieto et al., ICML 2023): linear recurrences.

One sequence u (L, H). The state x has P complex entries and a diagonal transition.

    x_k = Λ̄ x_k-1 + B̄ u_k,   y_k = Re(C x_k) + D u_k                                         (1)
    S5:  Λ̄ = exp(Δ Λ), B̄ = (Λ̄ - 1) / Λ · B, or the bilinear rule; C doubled, because one state of
         each conjugate pair is stored (S5, section 3 and appendix B)                         (2)
    LRU: Λ̄_j = exp(-exp(ν_j) + i exp(θ_j)), B̄ = exp(γ) B (LRU, sections 3.3 and 3.4)          (3)

Numbers refer to this list. ν, θ and γ are the LRU paper's ν^log, θ^log and γ^log. A loop takes O(L P H) time; the
papers use a parallel scan.
"""

import torch
from jaxtyping import Complex, Float
from torch import Tensor


def recurrence(
    lambda_bar: Complex[Tensor, "P"],
    B_bar: Complex[Tensor, "P H"],
    C: Complex[Tensor, "H P"],
    u: Float[Tensor, "L H"],
    *,
    reverse: bool = False,
) -> Float[Tensor, "L H"]:
    """Compute Re(C x_k), step 1 without D; in reverse the states run from the last token to the first."""
    inputs = u.flip(0) if reverse else u
    x = torch.zeros_like(lambda_bar)
    outputs = []
    for u_k in inputs:
        complex_u = u_k.to(B_bar.dtype)
        x = lambda_bar * x + B_bar @ complex_u
        y_k = (C @ x).real
        outputs.append(y_k)
    y = torch.stack(outputs)
    return y.flip(0) if reverse else y


def layer(
    lambda_bar: Complex[Tensor, "P"],
    B_bar: Complex[Tensor, "P H"],
    C: list[Complex[Tensor, "H P"]],
    D: Float[Tensor, "H"],
    u: Float[Tensor, "L H"],
) -> Float[Tensor, "L H"]:
    """Compute step 1, with a second read-out C_2 of the states of the reversed sequence if there is one."""
    y = D * u
    for direction, read_out in enumerate(C):
        is_backward = direction == 1
        y = y + recurrence(lambda_bar, B_bar, read_out, u, reverse=is_backward)
    return y


def s5(
    u: Float[Tensor, "L H"],
    Lambda: Complex[Tensor, "P"],
    B: Complex[Tensor, "P H"],
    C: list[Complex[Tensor, "H P"]],
    D: Float[Tensor, "H"],
    step: Float[Tensor, "P"],
    *,
    method: str = "zoh",
) -> Float[Tensor, "L H"]:
    """Compute an S5 layer without its gate.

    Args:
        u: inputs.
        Lambda: eigenvalues Λ, one of each conjugate pair.
        B, C: matrices; two matrices C for a bidirectional layer.
        D: one number per channel.
        step: Δ.
        method: ``zoh`` | ``bilinear``.
    """
    # Λ̄ and B̄, step 2.
    if method == "zoh":
        lambda_bar = (step * Lambda).exp()
        gain = (lambda_bar - 1) / Lambda
    else:
        half_step = step * Lambda / 2
        lambda_bar = (1 + half_step) / (1 - half_step)
        gain = step / (1 - half_step)
    B_bar = gain[:, None] * B
    doubled = [2 * read_out for read_out in C]
    return layer(lambda_bar, B_bar, doubled, D, u)


def lru(
    u: Float[Tensor, "L H"],
    nu: Float[Tensor, "P"],
    theta: Float[Tensor, "P"],
    gamma: Float[Tensor, "P"],
    B: Complex[Tensor, "P H"],
    C: list[Complex[Tensor, "H P"]],
    D: Float[Tensor, "H"],
) -> Float[Tensor, "L H"]:
    """Compute an LRU layer without its gate.

    Args:
        u: inputs.
        nu: logarithm of -log |λ|.
        theta: logarithm of the phase of λ.
        gamma: logarithm of the learned scale of the inputs, which is initialised to √(1 - |λ|²).
        B, C: matrices; two matrices C for a bidirectional layer.
        D: one number per channel.
    """
    # Λ̄ and B̄, step 3.
    log_lambda_bar = torch.complex(-nu.exp(), theta.exp())
    lambda_bar = log_lambda_bar.exp()
    B_bar = gamma.exp()[:, None] * B
    return layer(lambda_bar, B_bar, C, D, u)
