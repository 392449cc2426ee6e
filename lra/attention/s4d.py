"""S4D, a diagonal state-space model for each channel (Gu, Gupta, Goel and Re, NeurIPS 2022)."""

import math
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Complex, Float
from torch import Tensor, nn

from ..ops.ssm import Discretisation, hippo_legs, long_conv, pack_bidirectional, s4d_kernel
from ..ops.untraced import untraced
from ..options import Above, Range, require_range
from .base import Mixer, Sizes

Init = Literal["lin", "inv", "legs"]


class S4D(Mixer):
    """Convolve each channel with the kernel of a diagonal state-space model.

        1. A_n = -exp(log_A_real) + i A_imag,   Δ = exp(log_dt)
        2. Ā_n, B̄_n: A_n, B_n discretised with step Δ                                      section 3.1
        3. K[l] = 2 Re Σ_n C_n B̄_n Ā_n^l,   n = 0 .. M - 1,   M = ``states`` / 2          eq. 7
        4. y = K * x + D x for the input x, with one learned number D per channel

    ``lra.ops.ssm.s4d_kernel`` computes steps 1 to 3 without forming the L x M Vandermonde matrix. A masked token counts
    as zero in the convolution. O(L log L + M L) time per channel.

    Args:
        states: 2 M, an even number. States form conjugate pairs, and one of each pair is stored.
        init: initial A_n = -1/2 + i ω_n and B (section 4). ``lin``: ω_n = π n, B = 1. ``inv``: B = 1 and
            ω_n = N/π (N / (2n + 1) - 1) with N = 2 M. ``legs``: ω_n are the positive imaginary parts of the eigenvalues
            of the normal part of HiPPO-LegS; B holds the entries of Vᴴ B_LegS for these eigenvalues (the columns of V
            are the eigenvectors), with imaginary parts clipped to [-2, 2].
        discretisation: ``zoh`` or ``bilinear``.
        bidirectional: True: a second kernel with its own C convolves the later tokens; its first lag is the next token.
            False: the layer is causal.
        shared: whether all channels share A and B; each channel has its own C and Δ.
        step_min, step_max: Δ is drawn log-uniformly between them.
        rate: learning-rate factor of Δ, A and B, which have no weight decay. ``optim.own_lr_max`` caps their rate.
        step_rate: learning-rate factor of Δ; None: ``rate``.
        c_rate: learning-rate factor of C, with weight decay and the same cap. None: C is trained like other parameters.

    Raises:
        ValueError: ``states`` is odd, or ``step_max`` is below ``step_min``.

    Source: sections 3 and 4 of the paper. B is trained, as in the paper's training configurations (docs/ssm.md). In
    plain torch: ``lra/reference/s4d.py``.
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
        require_range("step_max", step_max, Range(step_min), "step_min")
        self.discretisation = discretisation
        self.causal = not bidirectional
        # Real numbers in the recurrent state of one direction: 2 M for the M complex numbers of each channel.
        self.state_size = dim * states
        # Learning-rate factors. Parameters in ``rates`` have no weight decay, except those in ``decayed``.
        if step_rate is None:
            step_rate = rate
        self.rates = {"log_dt": step_rate, "log_A_real": rate, "A_imag": rate, "B": rate}
        if c_rate is not None:
            self.rates["C"] = c_rate
            self.decayed = {"C"}

        A_imag, B = _initial(init, states)  # (M,)
        num_pairs = states // 2
        num_rows = 1 if shared else dim
        num_directions = 2 if bidirectional else 1
        log_dt = torch.empty(dim).uniform_(math.log(step_min), math.log(step_max))
        # log(-Re A) with Re A = -1/2.
        log_A_real = torch.full((num_rows, num_pairs), math.log(0.5))
        self.log_dt = nn.Parameter(log_dt)
        self.log_A_real = nn.Parameter(log_A_real)
        self.A_imag = nn.Parameter(A_imag.repeat(num_rows, 1))
        # Complex parameters are stored as real tensors (..., 2) of real and imaginary parts.
        B = B.repeat(num_rows, 1)
        self.B = nn.Parameter(torch.view_as_real(B))
        # C is complex normal with E|C|² = 1.
        C = torch.randn(num_directions, dim, num_pairs, 2) * 0.5**0.5
        self.C = nn.Parameter(C)
        self.D = nn.Parameter(torch.randn(dim))

    def forward(
        self,
        x: Float[Tensor, "batch L d"],
        mask: Bool[Tensor, "batch L"] | None = None,
    ) -> Float[Tensor, "batch L d"]:
        # 4. y = K * x + D x; ``long_conv`` calls ``self.kernel`` in full precision.
        y = long_conv(x, self.D, self.kernel, mask)
        return y.to(x.dtype)

    def kernel(self, length: int) -> Float[Tensor, "d lags"]:
        """Compute K in the layout of ``lra.ops.ssm.fft_conv``: L lags of a causal model, 2 L of a bidirectional one."""
        # The kernel depends on B and C only through their product, so B is multiplied into C.
        B = torch.view_as_complex(self.B)  # (1 or d,M)
        C = torch.view_as_complex(self.C) * B  # (1 or 2,d,M)

        # Steps 1 to 3 for each direction.
        compute_kernel = untraced(s4d_kernel)
        kernels = []
        for C_direction in C:
            kernel = compute_kernel(
                self.log_dt,
                self.log_A_real,
                self.A_imag,
                C_direction,
                length,
                discretisation=self.discretisation,
            )
            kernels.append(kernel)  # (d,L)
        return pack_bidirectional(torch.stack(kernels))


def _initial(init: Init, states: int) -> tuple[Float[Tensor, " M"], Complex[Tensor, " M"]]:
    """Compute the initial A_imag and B (section 4)."""
    half = states // 2
    n = torch.arange(half)
    B = torch.ones(half, dtype=torch.complex64)
    if init == "lin":
        omega = math.pi * n
        return omega.float(), B
    if init == "inv":
        omega = states / math.pi * (states / (2 * n + 1) - 1)
        return omega.float(), B

    # legs: B of HiPPO-LegS is √(2n + 1); in the eigenbasis V of the normal part it is Vᴴ B.
    eigenvalues, V = hippo_legs(states)
    legs_B = (2 * torch.arange(states) + 1).sqrt()
    B = V.mH @ legs_B.to(V)
    B = torch.complex(B.real, B.imag.clamp(-2, 2))
    # Eigenvalues are sorted by imaginary part; the second half has the positive ones.
    omega = eigenvalues.imag[half:]
    return omega.float(), B[half:].to(torch.complex64)
