"""S4D, a diagonal state-space model for each channel (Gu, Gupta, Goel and Re, NeurIPS 2022)."""

import math
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from ..ops.ssm import Discretisation, both_ways, hippo_legs, long_conv, s4d_kernel
from ..options import Above, Range, in_range
from .base import Mixer, Sizes

Init = Literal["lin", "inv", "legs"]


class S4D(Mixer):
    """y = K * u + D u with a kernel K[l] = 2 Re Σ_m C_m B_m ∫ exp(Δ A_m l) of complex exponentials for each channel.

    ``bidirectional`` adds a second kernel, with a C of its own, over the tokens ahead, the next one first. A masked
    token counts as zero. O(L log L + N L) time for each channel.

    Args:
        states: N, of which one of each conjugate pair is kept, M = N / 2.
        init: initialisation of A_m = -1/2 + i ω_m. ``lin``: ω_m = π m. ``inv``: ω_m = N/π (N / (2m + 1) - 1). ``legs``:
            the positive imaginary parts of the normal part of HiPPO-LegS, with its B, whose imaginary parts are clipped
            at 2.
        discretisation: ``zoh`` | ``bilinear``.
        bidirectional: False: causal.
        shared: one A and B for all channels; C and Δ stay each channel's own.
        step_min, step_max: Δ is drawn log-uniformly between them.
        rate: factor of the learning rate of Δ, A and B, which have no weight decay.
        step_rate: another one of Δ's; None: the same.
        c_rate: factor of the learning rate of C, which keeps its weight decay; None: 1.

    Raises:
        ValueError: an odd number of states, or step_max is below step_min.

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
        self.discretisation, self.causal = discretisation, not bidirectional
        self.rates = dict.fromkeys(("log_decay", "frequency", "b"), rate) | {"log_step": step_rate or rate}
        if c_rate is not None:
            self.rates["c"], self.decayed = c_rate, {"c"}
        frequency, b = _initial(init, states)  # (M,)
        rows = 1 if shared else dim
        self.log_step = nn.Parameter(torch.empty(dim).uniform_(math.log(step_min), math.log(step_max)))
        self.log_decay = nn.Parameter(torch.full((rows, states // 2), math.log(0.5)))
        self.frequency = nn.Parameter(frequency.repeat(rows, 1))
        self.b = nn.Parameter(torch.view_as_real(b.repeat(rows, 1)))
        self.c = nn.Parameter(torch.randn(1 + bidirectional, dim, states // 2, 2) * 0.5**0.5)
        self.skip = nn.Parameter(torch.randn(dim))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return long_conv(x, self.skip, self.kernel, mask).to(x.dtype)

    def kernel(self, length: int) -> Tensor:
        """(d,L) of a causal model, (d,2L) of a bidirectional one, laid out as ``fft_conv`` takes it."""
        c = torch.view_as_complex(self.c) * torch.view_as_complex(self.b)  # (1 or 2,d,M)
        model = (self.log_step, self.log_decay, self.frequency)
        kernels = [s4d_kernel(*model, part, length, discretisation=self.discretisation) for part in c]
        return both_ways(torch.stack(kernels))


def _initial(init: Init, states: int) -> tuple[Tensor, Tensor]:
    """ω (M,) float32 and B (M,) complex64."""
    m = torch.arange(states // 2)
    if init == "legs":
        values, vectors = hippo_legs(states)
        b = vectors.mH @ (2 * torch.arange(states) + 1).sqrt().to(vectors)
        b = torch.complex(b.real, b.imag.clamp(-2, 2))
        return values.imag[states // 2 :].float(), b[states // 2 :].to(torch.complex64)
    frequency = math.pi * m if init == "lin" else states / math.pi * (states / (2 * m + 1) - 1)
    return frequency.float(), torch.ones(len(m), dtype=torch.complex64)
