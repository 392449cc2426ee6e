"""RG-LRU, the recurrent block of Griffin (De et al., 2024)."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..ops.diagonal_recurrence import diagonal_recurrence
from ..ops.precision import full_precision
from ..ops.selection import first_real
from ..options import Positive, Range, require_range
from .base import Mixer, Sizes
from .recurrent_parts import ShortConvolution, inverse_softplus, mask_tokens

# c of the paper: a_t = exp(-c r_t softplus(Λ)).
SHARPNESS = 8.0


class RGLRU(Mixer):
    """h_t = a_t h_(t-1) + sqrt(1 - a_t²) (i_t u_t) for each channel, a_t = exp(-8 r_t softplus(Λ)).

    Gates r = σ(W_a u + b_a) and i = σ(W_x u + b_x) have block-diagonal maps with one block per head. The RG-LRU is part
    of Griffin's block W_o(gelu(W_y x) h), in which u is the input x after a linear map and a short convolution. O(L d)
    time; a state of d numbers per direction.

    Args:
        causal: whether a token sees only itself and earlier tokens, as published; the first token then enters with
            factor 1 instead of sqrt(1 - a²), since it has no history. Otherwise the recurrence also runs from the
            right, with the same parameters, and both outputs are added; the token itself counts once. The short
            convolution then sees later tokens too.
        conv: tokens that the short convolution sees.
        radius_min, radius_max: range of the initial radius exp(-softplus(Λ)), whose square is uniform, as in LRU. The
            decay a is the radius to the power 8 r. In the paper the radius to the power 8 has this range.

    Raises:
        ValueError: the heads do not divide dim, a radius is not between 0 and 1, or radius_max is below radius_min.

    Source: the paper, section 2.4, with -Λ for its Λ, as in the released code. The gates and Λ are initialised as in
    that code, the linear maps and the convolution as in PyTorch. In plain torch: ``lra/reference/selective_scan.py``.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        dim: int,
        causal: bool = False,
        conv: Positive = 4,
        radius_min: float = 0.9,
        radius_max: float = 0.999,
    ):
        super().__init__(sizes, dim=dim)
        if dim % sizes.heads:
            raise ValueError(f"model.heads must divide model.dim = {dim}, got {sizes.heads}")
        require_range("radius_min", radius_min, Range(above=0, below=1))
        require_range("radius_max", radius_max, Range(radius_min, below=1))
        self.causal = causal
        self.state_size = dim
        block = dim // sizes.heads
        self.inputs = nn.Linear(dim, 2 * dim)
        self.conv = ShortConvolution(dim, conv, causal=causal, bias=True, activation=False)
        # W_a and W_x, b_a and b_x.
        gate_weight = torch.randn(2, sizes.heads, block, block)
        self.gate_weight = nn.Parameter(gate_weight * block**-0.5)
        self.gate_bias = nn.Parameter(torch.zeros(2, sizes.heads, block))
        # Λ, in checkpoints "decay": softplus(Λ) = -log(radius) = -log(radius²) / 2
        squared_radius = torch.empty(dim, dtype=torch.float64).uniform_(radius_min**2, radius_max**2)
        lambda_ = inverse_softplus(-squared_radius.log() / 2)
        self.decay = nn.Parameter(lambda_.float())
        # Parameters in ``rates`` have no weight decay, and ``optim.own_lr_max`` caps their learning rate.
        self.rates = {"decay": 1.0}
        self.output = nn.Linear(dim, dim)

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        u, gate = self.inputs(x).chunk(2, dim=-1)  # (N,L,d)
        u = self.conv(u, mask)
        states = self.recurrence(u, mask)
        gated = F.gelu(gate, approximate="tanh") * states
        return self.output(gated.to(x.dtype))

    @full_precision
    def recurrence(
        self,
        u: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None,
    ) -> Float[Tensor, "N L d"]:
        """Run the RG-LRU over u."""
        # Gates r and i.
        blocks = u.unflatten(-1, (self.sizes.heads, -1))  # (N,L,H,block)
        logits = torch.einsum("nlhi,ghij->gnlhj", blocks, self.gate_weight)
        logits = logits + self.gate_bias[:, None, None]
        r, i = logits.sigmoid().flatten(-2)  # (N,L,d) each

        # log a and sqrt(1 - a²). expm1 keeps the digits where a is near 1; the clamp keeps the derivative of sqrt at
        # most 1,000 (in the released code it does not change the root itself).
        log_a = -SHARPNESS * r * F.softplus(self.decay)
        one_minus_a2 = -torch.expm1(2 * log_a)
        scale = one_minus_a2.clamp(min=2.5e-7).sqrt()
        if self.causal:
            real = torch.ones_like(u[:1, :, 0], dtype=torch.bool) if mask is None else mask  # (N or 1,L)
            is_first = first_real(real)
            scale = torch.where(is_first[..., None], 1, scale)

        # Padding leaves the state unchanged: its input is 0 and its decay is 1.
        inputs = mask_tokens(scale * i * u, mask)
        log_a = mask_tokens(log_a, mask)
        return diagonal_recurrence(log_a, inputs, bidirectional=not self.causal)
