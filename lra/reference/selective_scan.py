"""Diagonal recurrences whose decays vary over time: Mamba's selective scan, and the scan of RG-LRU, minGRU and HGRN.

Sources: Gu and Dao 2023 (Mamba), eq. 2 and algorithm 2; De et al. 2024 (Griffin), eq. 4.
"""

import torch


def selective_scan(u, delta, A, B, C):
    """Compute h_t = exp(Δ_t A) h_(t-1) + Δ_t B_t u_t and y_t = C_tᵀ h_t for each channel, token by token.

    Args:
        u: inputs (N,L,d).
        delta: step sizes Δ (N,L,d), positive.
        A: (d,n), negative.
        B, C: (N,L,n).

    Returns:
        (N,L,d).
    """
    N, L, d = u.shape
    state = u.new_zeros(N, d, A.shape[1])
    outputs = []
    for t in range(L):
        step = delta[:, t, :, None]
        decay = (step * A).exp()
        write = step * B[:, t, None, :] * u[:, t, :, None]
        state = decay * state + write
        outputs.append((state * C[:, t, None, :]).sum(-1))
    return torch.stack(outputs, dim=1)


def selective_scan_two_sided(u, delta, A, B, C):
    """Add the scan from the right; a token's own input, which both scans contain, is counted once."""
    forward = selective_scan(u, delta, A, B, C)
    backward = selective_scan(u.flip(1), delta.flip(1), A, B.flip(1), C.flip(1)).flip(1)
    own = delta * u * (B * C).sum(-1, keepdim=True)
    return forward + backward - own


def diagonal_recurrence(log_decay, inputs):
    """Compute x_t = exp(g_t) x_(t-1) + u_t for each channel, token by token: g, u (N,L,P) -> (N,L,P)."""
    state = torch.zeros_like(inputs[:, 0])
    states = []
    for t in range(inputs.shape[1]):
        state = log_decay[:, t].exp() * state + inputs[:, t]
        states.append(state)
    return torch.stack(states, dim=1)


def diagonal_recurrence_two_sided(log_decay, inputs):
    """Add the recurrence from the right; a token's own input is counted once."""
    forward = diagonal_recurrence(log_decay, inputs)
    backward = diagonal_recurrence(log_decay.flip(1), inputs.flip(1)).flip(1)
    return forward + backward - inputs
