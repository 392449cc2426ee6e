"""Diagonal recurrences with varying decays: Mamba's selective scan, and the scan of RG-LRU, minGRU and minLSTM.

Sources: Gu and Dao 2023 (Mamba), eq. 2 and algorithm 2, with B̄ = Δ B (Euler's rule) as released instead of eq. 4;
De et al. 2024 (Griffin), eq. 4; Feng et al. 2024 (minGRU, minLSTM), section 3.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def selective_scan(
    u: Float[Tensor, "N L d"],
    delta: Float[Tensor, "N L d"],
    A: Float[Tensor, "d n"],
    B: Float[Tensor, "N L n"],
    C: Float[Tensor, "N L n"],
) -> Float[Tensor, "N L d"]:
    """Compute h_t = exp(Δ_t A) h_(t-1) + Δ_t B_t u_t and y_t = C_tᵀ h_t for each channel, token by token.

    Args:
        u: inputs.
        delta: step sizes Δ, positive.
        A: negative.
        B, C: input and output maps of each token.
    """
    N, L, d = u.shape
    state = u.new_zeros(N, d, A.shape[1])
    outputs = []
    for t in range(L):
        u_t = u[:, t, :, None]  # (N,d,1)
        step = delta[:, t, :, None]
        B_t = B[:, t, None, :]  # (N,1,n)
        C_t = C[:, t, None, :]
        decay = (step * A).exp()
        write = step * B_t * u_t
        state = decay * state + write
        output = (state * C_t).sum(-1)
        outputs.append(output)
    return torch.stack(outputs, dim=1)


def selective_scan_two_sided(
    u: Float[Tensor, "N L d"],
    delta: Float[Tensor, "N L d"],
    A: Float[Tensor, "d n"],
    B: Float[Tensor, "N L n"],
    C: Float[Tensor, "N L n"],
) -> Float[Tensor, "N L d"]:
    """Add the scan from the right; a token's own input, which both scans contain, is counted once."""
    forward = selective_scan(u, delta, A, B, C)
    u_reversed, delta_reversed, B_reversed, C_reversed = (x.flip(1) for x in (u, delta, B, C))
    backward = selective_scan(u_reversed, delta_reversed, A, B_reversed, C_reversed)
    B_dot_C = (B * C).sum(-1, keepdim=True)
    self_output = delta * u * B_dot_C
    return forward + backward.flip(1) - self_output


def diagonal_recurrence(log_decay: Float[Tensor, "N L P"], inputs: Float[Tensor, "N L P"]) -> Float[Tensor, "N L P"]:
    """Compute x_t = exp(g_t) x_(t-1) + u_t for each channel, token by token.

    RG-LRU: exp(g) = a and u = √(1 - a²) i x. minGRU: exp(g) = 1 - z and u = z h̃. minLSTM: exp(g) = f' and u = i' h̃.
    """
    state = torch.zeros_like(inputs[:, 0])
    states = []
    for t in range(inputs.shape[1]):
        decay = log_decay[:, t].exp()
        state = decay * state + inputs[:, t]
        states.append(state)
    return torch.stack(states, dim=1)


def diagonal_recurrence_two_sided(
    log_decay: Float[Tensor, "N L P"],
    inputs: Float[Tensor, "N L P"],
) -> Float[Tensor, "N L P"]:
    """Add the recurrence from the right; a token's own input is counted once."""
    forward = diagonal_recurrence(log_decay, inputs)
    reversed_decay = log_decay.flip(1)
    reversed_inputs = inputs.flip(1)
    backward = diagonal_recurrence(reversed_decay, reversed_inputs)
    return forward + backward.flip(1) - inputs
