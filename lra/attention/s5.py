"""S5, one state-space model of many inputs and outputs (Smith, Warrington and Linderman, ICLR 2023)."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from ..ops.initial import truncated_normal_
from ..ops.ssm import Discretisation, diagonal_ssm, discretise, hippo_legs
from ..options import Above, Positive, Range, in_range
from .base import Mixer, Sizes

CInit = Literal["lecun_normal", "trunc_standard_normal", "complex_normal"]
BOptim = Literal["state", "state_decay", "main"]
StepOptim = Literal["state", "main"]


class S5(Mixer):
    """x_k = Λ̄ x_(k-1) + B̄ u_k, y_k = 2 Re(C x_k) + D u_k: one diagonal model for all channels, by a parallel scan.

    Λ = λ + i ω starts as the eigenvalues of J blocks of the normal part of HiPPO-LegS, S = V Λ Vᴴ, one of each
    conjugate pair; B and C start as Vᴴ B and C V. Λ̄ and B̄ are discretised with a step for each state.
    ``bidirectional`` adds the states of a scan from the row's end, with a C of their own. A masked token counts as
    zero. Time O(P L log L) for the scan and O(P d L) for B and C; memory O(P L).

    Args:
        states: P, of which one of each conjugate pair is kept.
        blocks: J, all alike; each has P / J states.
        c_init: initialisation of C before the product with V, d x P complex, by standard deviation of each part.
            ``lecun_normal``: (P d)^-1/2. ``trunc_standard_normal``: P^-1/2. ``complex_normal``: 2^-1/2 for C V itself.
        discretisation: ``zoh`` | ``bilinear``.
        bidirectional: False: causal.
        clip: λ counts as -1e-4 if it is above. Without it states may learn to grow.
        step_min, step_max: Δ is drawn log-uniformly between them.
        rate: factor of the learning rate of Λ, B and Δ, which have no weight decay.
        b_optim: ``state``: so B is trained. ``state_decay``: with weight decay. ``main``: as C and D are.
        step_optim: ``state`` | ``main``: the same for Δ.

    Raises:
        ValueError: states that are not J even blocks, or step_max is below step_min.

    Source: the paper, section 3 and appendix B; the distributions of B and C are the released code's (docs/ssm.md).
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        dim: int,
        states: Positive = 128,
        blocks: Positive = 8,
        c_init: CInit = "trunc_standard_normal",
        discretisation: Discretisation = "zoh",
        bidirectional: bool = True,
        clip: bool = False,
        step_min: Above = 0.001,
        step_max: Above = 0.1,
        rate: Above = 1.0,
        b_optim: BOptim = "state",
        step_optim: StepOptim = "state",
    ):
        super().__init__(sizes, dim=dim)
        self.causal = not bidirectional
        if states % (2 * blocks):
            raise ValueError(f"states must be a multiple of 2 x blocks = {2 * blocks}, not {states}")
        in_range("step_max", step_max, Range(step_min), "step_min")
        self.discretisation, self.clip = discretisation, clip
        alike = {"b": b_optim != "main", "log_step": step_optim != "main"}
        self.rates = {name: rate for name in ("decay", "frequency", "b", "log_step") if alike.get(name, True)}
        self.decayed = {"b"} if b_optim == "state_decay" else set()

        half = states // blocks // 2
        values, vectors = (t[..., :half] for t in hippo_legs(2 * half))  # imaginary parts below 0
        V = torch.block_diag(*[vectors] * blocks)  # (P,P/2)
        self.decay = nn.Parameter(values.real.repeat(blocks).float())
        self.frequency = nn.Parameter(values.imag.repeat(blocks).float())
        self.log_step = nn.Parameter(torch.empty(states // 2).uniform_(math.log(step_min), math.log(step_max)))
        b = truncated_normal_(torch.empty(states, dim), std=states**-0.5).to(V)
        self.b = nn.Parameter(torch.view_as_real(V.mH @ b).float())  # (P/2,d,2)
        shape = 1 + bidirectional, dim, states
        if c_init == "complex_normal":
            self.c = nn.Parameter(torch.randn(*shape[:-1], states // 2, 2) * 0.5**0.5)
        else:
            fan = states * dim if c_init == "lecun_normal" else states
            c = torch.view_as_complex(truncated_normal_(torch.empty(*shape, 2), std=fan**-0.5)).to(V)
            self.c = nn.Parameter(torch.view_as_real(c @ V).float())  # (1 or 2,d,P/2,2)
        self.skip = nn.Parameter(torch.randn(dim))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        decay = self.decay.clamp(max=-1e-4) if self.clip else self.decay
        log_z, gain = discretise(torch.complex(decay, self.frequency), self.log_step.exp(), self.discretisation)
        b = torch.view_as_real(gain[:, None] * torch.view_as_complex(self.b))
        return (diagonal_ssm(x, log_z.exp(), b, 2 * self.c, mask) + self.skip * x).to(x.dtype)
