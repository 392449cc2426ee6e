"""Mamba's selective state-space layer (Gu and Dao, 2023)."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..ops.precision import upcast
from ..ops.selective_scan import selective_scan
from ..options import Above, Positive, Range, require_range
from .base import Mixer, Sizes
from .recurrent_parts import ShortConvolution, initial_step_biases

Spacing = Literal["linear", "log"]


class Mamba(Mixer):
    """h_t = exp(Δ_t A) h_(t-1) + Δ_t B_t u_t, y_t = silu(z_t) (C_t·h_t + D u_t) for each of expand · dim channels.

    u and z are linear maps of the input; u passes a short convolution and SiLU; Δ, B and C are linear maps of u, Δ
    through a bottleneck of rank ceil(dim / 16), a bias and softplus. D is one learned number per channel. A linear map
    of y to dim channels gives the output. O(L d n) time; a state of d n numbers for each direction, d = expand · dim.

    Unless ``causal``, the outputs of scans in both directions, with shared parameters, are added (the token itself
    counts once), and the short convolution sees later tokens too. The published layer replaces attention and
    feed-forward layer together; here it replaces the mixer alone. With the published initial values, A = -1 to -n and
    step sizes of 0.001 to 0.1, the longest horizon is 1,000 tokens.

    Args:
        causal: whether a token sees only itself and earlier tokens, as published.
        states: n, states of each channel.
        expand: channels as a multiple of dim.
        conv: tokens that the short convolution sees.
        step_min, step_max: range of the initial step sizes, drawn log-uniformly. With step_min = 1 / L the longest
            horizon is the sequence length L.
        decay_min, decay_max: smallest and largest initial -A of each channel; decay_max None: ``states``.
        spacing: spacing of -A from decay_min to decay_max: ``linear`` as published (1, 2, ..., n) or ``log``.

    Raises:
        ValueError: step_max is below step_min, or decay_max below decay_min.

    Source: the paper, section 3.4 and algorithm 2, with B̄ = Δ B (Euler's rule) as in the released code; eq. 4 of the
    paper has B̄ = (ΔA)⁻¹ (exp(ΔA) - 1) Δ B. In plain torch: ``lra/reference/selective_scan.py``.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        dim: int,
        causal: bool = False,
        states: Positive = 16,
        expand: Positive = 2,
        conv: Positive = 4,
        step_min: Above = 0.001,
        step_max: Above = 0.1,
        decay_min: Above = 1.0,
        decay_max: Above | None = None,
        spacing: Spacing = "linear",
    ):
        super().__init__(sizes, dim=dim)
        decay_max = states if decay_max is None else decay_max
        require_range("decay_max", decay_max, Range(decay_min), "decay_min")
        self.causal = causal
        inner = expand * dim
        self.state_size = inner * states
        rank = math.ceil(dim / 16)
        self.widths = [rank, states, states]
        self.inputs = nn.Linear(dim, 2 * inner, bias=False)
        self.conv = ShortConvolution(inner, conv, causal=causal, bias=True)
        self.select = nn.Linear(inner, rank + 2 * states, bias=False)
        self.step = nn.Linear(rank, inner, bias=False)
        # Draw again, from the same distribution as nn.Linear's initialisation: without the second draw, later
        # parameters would get other random numbers than in published runs.
        nn.init.uniform_(self.step.weight, -(rank**-0.5), rank**-0.5)
        self.step_bias = nn.Parameter(initial_step_biases(inner, step_min, step_max))
        # A = -1, -2, ..., -n in every channel as published, or another range.
        if spacing == "linear":
            log_A = torch.linspace(decay_min, decay_max, states).log()
        else:
            log_A = torch.linspace(math.log(decay_min), math.log(decay_max), states)
        self.log_A = nn.Parameter(log_A.repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        # Parameters in ``rates`` have no weight decay, and ``optim.own_lr_max`` caps their learning rate. The bias of Δ
        # is trained like the linear maps, with weight decay. The authors' trainer exempts all biases, by their names.
        self.rates = {"log_A": 1.0, "D": 1.0}
        self.output = nn.Linear(inner, dim, bias=False)

    def forward(
        self,
        x: Float[Tensor, "N L dim"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L dim"]:
        # Inputs u of the recurrence and their gate z.
        u, z = self.inputs(x).chunk(2, dim=-1)  # (N,L,d)
        u = self.conv(u, mask)

        # Selection: Δ, B and C depend on the token.
        low_rank, B, C = self.select(u).split(self.widths, dim=-1)  # (N,L,rank), (N,L,n), (N,L,n)
        logits = upcast(self.step(low_rank)) + self.step_bias
        delta = F.softplus(logits)  # (N,L,d)
        if mask is not None:
            # Padding leaves the state unchanged: a step of zero neither decays the state nor writes to it.
            is_padding = ~mask[..., None]  # (N,L,1)
            delta = delta.masked_fill(is_padding, 0)

        # y_t = C_t·h_t + D u_t, gated by silu(z).
        A = -self.log_A.exp()  # (d,n)
        y = selective_scan(u, delta, A, B, C, bidirectional=not self.causal)
        gated = (y + self.D * u) * F.silu(z)
        return self.output(gated.to(x.dtype))
