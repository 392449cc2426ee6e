"""LRU, the linear recurrent unit (Orvieto et al., ICML 2023)."""

import math
from typing import Annotated

import torch
from torch import Tensor, nn

from ..ops.ssm import diagonal_ssm
from ..options import Above, Positive, Range, in_range
from .base import Mixer, Sizes


class LRU(Mixer):
    """x_k = λ x_(k-1) + exp(γ) B u_k, y_k = Re(C x_k) + D u_k: a linear recurrence of complex states for all channels.

    λ_j = exp(-exp(ν_j) + i exp(θ_j)), inside the unit circle whatever is learned. exp(γ) starts as √(1 - |λ|²), which
    keeps the states of white noise at its variance. ``bidirectional`` adds the states of a scan from the row's end,
    with a C of their own. A masked token counts as zero. Time O(N L log L) for the scan and O(N d L) for B and C;
    memory O(N L).

    Args:
        states: N.
        bidirectional: False: causal.
        r_min, r_max: |λ| is drawn between them, uniformly on the ring.
        max_phase: the phase of λ is drawn uniformly between 0 and this one, in radians.
        rate: factor of the learning rate of ν, θ, γ and B, which have no weight decay.

    Raises:
        ValueError: r_max is below r_min.

    Source: the paper, sections 3.2 to 3.4 and appendix A.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        dim: int,
        states: Positive = 128,
        bidirectional: bool = True,
        r_min: Annotated[float, Range(0, below=1)] = 0.0,
        r_max: Annotated[float, Range(above=0, most=1)] = 1.0,
        max_phase: Annotated[float, Range(above=0, most=2 * math.pi)] = 2 * math.pi,
        rate: Above = 1.0,
    ):
        super().__init__(sizes, dim=dim)
        self.causal = not bidirectional
        in_range("r_max", r_max, Range(r_min, 1), "r_min")
        self.rates = dict.fromkeys(("nu", "theta", "gamma", "b"), rate)
        # Both ends of the interval are infinite logarithms.
        radius, phase = torch.rand(2, states, dtype=torch.float64).clamp(1e-6, 1 - 1e-6)
        nu = -0.5 * (radius * (r_max**2 - r_min**2) + r_min**2).log()
        self.nu = nn.Parameter(nu.log().float())
        self.theta = nn.Parameter((max_phase * phase).log().float())
        self.gamma = nn.Parameter((-torch.expm1(-2 * nu)).sqrt().log().float())
        self.b = nn.Parameter(torch.randn(states, dim, 2) * (2 * dim) ** -0.5)
        self.c = nn.Parameter(torch.randn(1 + bidirectional, dim, states, 2) * states**-0.5)
        self.skip = nn.Parameter(torch.randn(dim))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        decay = torch.complex(-self.nu.exp(), self.theta.exp()).exp()
        b = self.gamma.exp()[:, None, None] * self.b
        return (diagonal_ssm(x, decay, b, self.c, mask) + self.skip * x).to(x.dtype)
