"""LRU, the linear recurrent unit (Orvieto et al., ICML 2023)."""

import math
from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..ops.diagonal_recurrence import diagonal_ssm
from ..options import Above, Positive, Range, require_range
from .base import Mixer, Sizes


class LRU(Mixer):
    """x_k = λ x_(k-1) + exp(γ) B u_k, y_k = Re(C x_k) + D u_k: one linear recurrence of complex states (eq. 7).

    λ_j = exp(-exp(ν_j) + i exp(θ_j)) lies inside the unit circle for all parameters (section 3.3). exp(γ) starts as
    √(1 - |λ|²), so the states keep the variance of white noise (section 3.4). Masked tokens enter the scan as zeros.

    D is one learned number per channel. O(N L + N d L) time for the scan and for B and C; O(N L) memory.

    Args:
        states: N; in this file the number of examples is ``batch``.
        bidirectional: whether to add the outputs of a second scan, from the end of the sequence, with a second C. Both
            scans include the token itself. Otherwise the layer is causal.
        r_min, r_max: range of the initial |λ|, which is uniform over the area of the ring (its square is uniform).
        max_phase: upper limit of the initial phase of λ in radians, which is uniform from 0 to this limit.
        rate: learning-rate factor of ν, θ, γ and B, which have no weight decay.

    Raises:
        ValueError: ``r_max`` is below ``r_min``.

    Source: the paper, sections 3.2 to 3.4 and appendix A. In plain torch: ``lra/reference/diagonal_rnn.py``.
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
        # Real numbers in the recurrent state of one direction: two for each of the N complex numbers.
        self.state_size = 2 * states
        require_range("r_max", r_max, Range(r_min), "r_min")
        self.rates = {"nu": rate, "theta": rate, "gamma": rate, "b": rate}

        # Lemma 3.2: u1 and u2 uniform in (0, 1). At both ends of the interval a logarithm is infinite.
        uniform = torch.rand(2, states, dtype=torch.float64)
        u1, u2 = uniform.clamp(1e-6, 1 - 1e-6)
        # |λ|² = exp(-2 exp(ν)) and the phase exp(θ).
        squared_radius = u1 * (r_max**2 - r_min**2) + r_min**2
        exp_nu = -0.5 * squared_radius.log()
        phase = max_phase * u2
        self.nu = nn.Parameter(exp_nu.log().float())
        self.theta = nn.Parameter(phase.log().float())
        # exp(γ) = √(1 - |λ|²)
        exp_gamma = (-torch.expm1(-2 * exp_nu)).sqrt()
        self.gamma = nn.Parameter(exp_gamma.log().float())

        # Normal numbers: each part of B has variance 1 / (2 d), each part of C 1 / N. Real and imaginary parts stand in
        # the last dimension.
        num_scans = 2 if bidirectional else 1
        self.b = nn.Parameter(torch.randn(states, dim, 2) * (2 * dim) ** -0.5)
        self.c = nn.Parameter(torch.randn(num_scans, dim, states, 2) * states**-0.5)
        # D.
        self.skip = nn.Parameter(torch.randn(dim))

    def forward(
        self,
        x: Float[Tensor, "batch L d"],
        mask: Bool[Tensor, "batch L"] | None = None,
    ) -> Float[Tensor, "batch L d"]:
        # λ = exp(-exp(ν) + i exp(θ))
        log_lambda = torch.complex(-self.nu.exp(), self.theta.exp())  # (N,)
        lambda_ = log_lambda.exp()
        # exp(γ) B
        exp_gamma = self.gamma.exp()[:, None, None]  # (N,1,1)
        normalised_b = exp_gamma * self.b  # (N,d,2)
        # y = Re(C x) + D u with the states x; the input u of the equations is the argument ``x``.
        y = diagonal_ssm(x, lambda_, normalised_b, self.c, mask)  # (batch,L,d)
        return (y + self.skip * x).to(x.dtype)
