"""S4D, a diagonal state-space model for each channel (Gu, Gupta, Goel and Re, NeurIPS 2022)."""

import math
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from ..ops.ssm import Discretisation, hippo_legs, long_conv, pack_bidirectional, s4d_kernel
from ..options import Above, Range, in_range
from .base import Mixer, Sizes

Init = Literal["lin", "inv", "legs"]


class S4D(Mixer):
    """y = K * u + D u with K[l] = 2 Re Σ_n C_n B̄_n Ā_n^l for each channel, O(L log L + N L) time per channel.

    A_n = -exp(log_A_real) + i A_imag and the step Δ = exp(log_dt) give Ā and B̄ by ``discretisation`` (section 3.1). The
    kernel is a Vandermonde product (eq. 7), which ``lra.ops.ssm.s4d_kernel`` computes. A masked token counts as zero.

    Args:
        states: N. One of each conjugate pair is kept, so parameters have M = N / 2 entries.
        init: initial A_n = -1/2 + i ω_n (section 4). ``lin``: ω_n = π n. ``inv``: ω_n = N/π (N / (2n + 1) - 1).
            ``legs``: the positive imaginary parts of the normal part of HiPPO-LegS and its B, whose imaginary parts are
            clipped at 2.
        discretisation: ``zoh`` or ``bilinear``.
        bidirectional: whether to add a second kernel, with its own C, over later tokens, the next one first; otherwise
            the layer is causal.
        shared: whether all channels share A and B; C and Δ always belong to one channel.
        step_min, step_max: Δ is drawn log-uniformly between them.
        rate: learning-rate factor of Δ, A and B, which have no weight decay.
        step_rate: learning-rate factor of Δ; None: ``rate``.
        c_rate: learning-rate factor of C, which keeps its weight decay; None: 1.

    Raises:
        ValueError: ``states`` is odd, or ``step_max`` is below ``step_min``.

    Source: the paper, sections 3 and 4; its training configurations train B too (docs/ssm.md).
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        dim: int,
        states: Annotated[int, Range(2)] = 64,
        init: Init = "lin",
        discretisation: Discretisation = "zoh",
        bidirectional: bool = True,
        shared: bool = False,
        step_min: Above = 0.001,
        step_max: Above = 0.1,
        rate: Above = 1.0,
        step_rate: Above | None = None,
        c_rate: Above | None = None,
    ):
        super().__init__(sizes, dim=dim)
        if states % 2:
            raise ValueError(f"states must be even, not {states}")
        in_range("step_max", step_max, Range(step_min), "step_min")
        self.discretisation = discretisation
        self.causal = not bidirectional
        # N / 2 complex numbers for each channel.
        self.state_size = dim * states
        self.rates = {"log_dt": step_rate or rate, "log_A_real": rate, "A_imag": rate, "B": rate}
        if c_rate is not None:
            self.rates["C"] = c_rate
            self.decayed = {"C"}

        A_imag, B = _initial(init, states)  # (M,)
        num_models = 1 if shared else dim
        num_pairs = states // 2
        num_kernels = 2 if bidirectional else 1
        log_dt = torch.empty(dim).uniform_(math.log(step_min), math.log(step_max))
        self.log_dt = nn.Parameter(log_dt)
        self.log_A_real = nn.Parameter(torch.full((num_models, num_pairs), math.log(0.5)))
        self.A_imag = nn.Parameter(A_imag.repeat(num_models, 1))
        # Complex parameters hold their real and imaginary parts in the last dimension.
        self.B = nn.Parameter(torch.view_as_real(B.repeat(num_models, 1)))
        self.C = nn.Parameter(torch.randn(num_kernels, dim, num_pairs, 2) * 0.5**0.5)
        self.D = nn.Parameter(torch.randn(dim))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        # y = K * u + D u
        return long_conv(x, self.D, self.kernel, mask).to(x.dtype)

    def kernel(self, length: int) -> Tensor:
        """Compute K, (d,L) of a causal model and (d,2L) of a bidirectional one, in the layout of ``fft_conv``."""
        # Only the product of B and C enters the kernel.
        B = torch.view_as_complex(self.B)  # (1 or d,M)
        C = torch.view_as_complex(self.C) * B  # (1 or 2,d,M)
        kernels = []
        for C_direction in C:
            kernel = s4d_kernel(
                self.log_dt, self.log_A_real, self.A_imag, C_direction, length, discretisation=self.discretisation
            )
            kernels.append(kernel)
        return pack_bidirectional(torch.stack(kernels))


def _initial(init: Init, states: int) -> tuple[Tensor, Tensor]:
    """The initial A_imag (M,) float32 and B (M,) complex64 (section 4)."""
    n = torch.arange(states // 2)
    if init == "legs":
        # In the eigenbasis V of the normal part B becomes Vᴴ B, with B_n = √(2n + 1).
        eigenvalues, V = hippo_legs(states)
        B_legs = (2 * torch.arange(states) + 1).sqrt().to(V)
        B = V.mH @ B_legs
        B = torch.complex(B.real, B.imag.clamp(-2, 2))
        # The second half has the positive imaginary parts.
        half = states // 2
        return eigenvalues.imag[half:].float(), B[half:].to(torch.complex64)
    ones = torch.ones(len(n), dtype=torch.complex64)
    if init == "inv":
        A_imag = states / math.pi * (states / (2 * n + 1) - 1)
        return A_imag.float(), ones
    return (math.pi * n).float(), ones
