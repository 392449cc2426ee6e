"""S5, one state-space model of many inputs and outputs (Smith, Warrington and Linderman, ICLR 2023)."""

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..ops.diagonal_recurrence import diagonal_ssm
from ..ops.init import truncated_normal_
from ..ops.ssm import Discretisation, discretise, hippo_legs
from ..options import Above, Positive, Range, require_range
from .base import Mixer, Sizes

CInit = Literal["lecun_normal", "trunc_standard_normal", "complex_normal"]
BOptim = Literal["state", "state_decay", "main"]
StepOptim = Literal["state", "main"]


class S5(Mixer):
    """x_k = Λ̄ x_(k-1) + B̄ u_k, y_k = 2 Re(C x_k) + D u_k: one diagonal model for all channels (section 3.2).

    Λ = λ + i ω starts as the eigenvalues of J blocks of the normal part of HiPPO-LegS, S = V Λ Vᴴ, one of each
    conjugate pair; B and C start as Vᴴ B and C V (section 3.3). Λ̄ and B̄ are discretised with a step Δ for each state.
    The states are computed by a scan over all positions. Masked tokens enter it as zeros.

    D is one learned number per channel. O(P L + P d L) time for the scan and for B and C; O(P L) memory.

    Args:
        states: P. One of each conjugate pair is stored.
        blocks: J, all alike; each has P / J states.
        c_init: ``lecun_normal`` and ``trunc_standard_normal`` draw the real and imaginary parts of C (d x P) from a
            truncated normal with standard deviation (P d)^-1/2 and P^-1/2, respectively, and multiply C by V.
            ``complex_normal`` draws the real and imaginary parts of C V itself from a normal with standard deviation
            2^-1/2.
        discretisation: ``zoh`` or ``bilinear``.
        bidirectional: whether to add the outputs of a second scan, from the end of the sequence, with a second C. Both
            scans include the token itself. Otherwise the layer is causal.
        clip: whether λ is at most -1e-4. Without it states may learn to grow.
        step_min, step_max: Δ is drawn log-uniformly between them.
        rate: learning-rate factor of Λ, B and Δ, which have no weight decay.
        b_optim: how B is trained. ``state``: like Λ. ``state_decay``: like Λ, but with weight decay. ``main``: like C
            and D.
        step_optim: how Δ is trained: ``state``, like Λ, or ``main``, like C and D.

    Raises:
        ValueError: ``states`` is not a multiple of 2 J, or ``step_max`` is below ``step_min``.

    Source: the paper, section 3 and appendix B; the distributions of B and C are the released code's (docs/ssm.md). In
    plain torch: ``lra/reference/diagonal_rnn.py``, whose P counts the stored states, P / 2 here.
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
        # Real numbers in the recurrent state of one direction: two for each of the P / 2 complex numbers.
        self.state_size = states
        if states % (2 * blocks):
            raise ValueError(f"states must be a multiple of 2 x blocks = {2 * blocks}, not {states}")
        require_range("step_max", step_max, Range(step_min), "step_min")
        self.discretisation = discretisation
        self.clip = clip
        # Learning-rate factors. Parameters in ``rates`` have no weight decay, except those in ``decayed``.
        self.rates = {"decay": rate, "frequency": rate}
        if b_optim != "main":
            self.rates["b"] = rate
        if step_optim != "main":
            self.rates["log_step"] = rate
        self.decayed = {"b"} if b_optim == "state_decay" else set()

        # Λ and V of one block; the first half has the negative imaginary parts.
        half = states // blocks // 2
        num_pairs = states // 2
        eigenvalues, eigenvectors = hippo_legs(2 * half)
        V_block = eigenvectors[:, :half]  # (P/J,P/2J)
        V = torch.block_diag(*[V_block] * blocks)  # (P,P/2)
        eigenvalues = eigenvalues[:half]  # (P/2J,)
        # λ, ω and log Δ. Checkpoints contain these names.
        self.decay = nn.Parameter(eigenvalues.real.repeat(blocks).float())
        self.frequency = nn.Parameter(eigenvalues.imag.repeat(blocks).float())
        log_step = torch.empty(num_pairs).uniform_(math.log(step_min), math.log(step_max))
        self.log_step = nn.Parameter(log_step)

        # Vᴴ B. Real and imaginary parts stand in the last dimension.
        b = truncated_normal_(torch.empty(states, dim), std=states**-0.5)
        b = V.mH @ b.to(V)  # (P/2,d)
        self.b = nn.Parameter(torch.view_as_real(b).float())

        # C V, one for each direction.
        num_scans = 2 if bidirectional else 1
        if c_init == "complex_normal":
            c = torch.randn(num_scans, dim, num_pairs, 2) * 0.5**0.5
        else:
            fan = states * dim if c_init == "lecun_normal" else states
            c = truncated_normal_(torch.empty(num_scans, dim, states, 2), std=fan**-0.5)
            c = torch.view_as_complex(c).to(V) @ V  # (1 or 2,d,P/2)
            c = torch.view_as_real(c).float()
        self.c = nn.Parameter(c)
        # D.
        self.skip = nn.Parameter(torch.randn(dim))

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        # Λ̄ and B̄ (eq. 6).
        decay = self.decay.clamp(max=-1e-4) if self.clip else self.decay
        eigenvalues = torch.complex(decay, self.frequency)  # (P/2,)
        step = self.log_step.exp()
        log_lambda_bar, gain = discretise(eigenvalues, step, self.discretisation)
        lambda_bar = log_lambda_bar.exp()
        b = torch.view_as_complex(self.b)  # (P/2,d)
        b_bar = gain[:, None] * b

        # y = 2 Re(C x) + D u with the states x; the input u of the equations is the argument ``x``.
        y = diagonal_ssm(x, lambda_bar, torch.view_as_real(b_bar), 2 * self.c, mask)
        return (y + self.skip * x).to(x.dtype)
