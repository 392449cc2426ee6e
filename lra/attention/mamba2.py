"""State-space layers with one decay per head: Mamba-2 (Dao and Gu, ICML 2024), Hydra (Hwang et al., NeurIPS 2024)."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..ops.decay_attention import scalar_decay_attention
from ..ops.precision import upcast
from ..options import Above, Positive
from .base import Mixer, Sizes, split_heads
from .recurrent_parts import ShortConvolution, initial_step_biases


class Mamba2(Mixer):
    """S_t = exp(Δ_t A) S_(t-1) + B_t (Δ_t u_t)ᵀ, o_t = C_tᵀ S_t + D u_t for each head, then RMSNorm(o silu(z)).

    One linear map gives z, u, B, C and Δ. A short convolution and SiLU follow for u, B and C, a bias and softplus for
    Δ. All heads share B and C, which have n entries; D is one learned number per head. The RMSNorm covers all heads
    together, and a linear map to dim follows it. A head has width E = expand · dim / heads. O(L b (n + E) + L n E) time
    per head with chunks of b = 64 tokens; a state of n E numbers per head and direction.

    Args:
        causal: whether a token sees only itself and earlier tokens, as published. Otherwise the recurrence also runs
            from the right, with the same parameters, and both outputs are added; the token itself counts once. The
            short convolution then sees later tokens too.
        states: n. The released ``Mamba2`` has 128, ``Mamba2Simple`` 64.
        expand: width of u as a multiple of dim.
        conv: tokens that the short convolution sees.
        step_min, step_max: range of the initial step sizes, drawn log-uniformly.

    Raises:
        ValueError: the heads do not divide expand · dim, or step_max is below step_min.

    Source: the paper, sections 5 to 7. In plain torch: ``lra/reference/decay_attention.py``.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        dim: int,
        causal: bool = False,
        states: Positive = 64,
        expand: Positive = 2,
        conv: Positive = 4,
        step_min: Above = 0.001,
        step_max: Above = 0.1,
    ):
        super().__init__(sizes, dim=dim)
        heads = sizes.heads
        inner = expand * dim
        if inner % heads:
            raise ValueError(f"model.heads must divide expand * dim = {inner}, got {heads}")
        self.causal = causal
        self.states = states
        self.inner = inner
        self.state_size = inner * states
        self.num_sets = self.count_sets()
        # Widths of all B and C together, and of all Δ.
        self.bc_width = 2 * self.num_sets * states
        self.delta_width = self.num_sets * heads
        self.inputs = nn.Linear(dim, 2 * inner + self.bc_width + self.delta_width, bias=False)
        self.conv = ShortConvolution(inner + self.bc_width, conv, causal=causal, bias=True)
        self.step_bias = nn.Parameter(initial_step_biases(heads, step_min, step_max))
        self.log_A = nn.Parameter(self.initial_log_A(heads))
        self.D = nn.Parameter(torch.ones(heads))
        # Parameters in ``rates`` have no weight decay, and ``optim.own_lr_max`` caps their learning rate.
        self.rates = {"log_A": 1.0, "D": 1.0, "step_bias": 1.0}
        self.norm = nn.RMSNorm(inner, eps=1e-5)
        self.output = nn.Linear(inner, dim, bias=False)

    def count_sets(self) -> int:
        """Return the number of sets of B, C and Δ: one, which both directions share."""
        return 1

    def initial_log_A(self, heads: int) -> Float[Tensor, " H"]:
        """A starts between -1 and -16."""
        magnitudes = torch.empty(heads).uniform_(1, 16)
        return magnitudes.log()

    def project(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None,
    ) -> tuple[
        Float[Tensor, "N L inner"],
        Float[Tensor, "N L inner"],
        Float[Tensor, "N L BC"],
        Float[Tensor, "N L steps"],
    ]:
        """Compute z, u, all B and C, and all steps Δ."""
        widths = [self.inner, self.inner + self.bc_width, self.delta_width]
        z, conv_inputs, delta_inputs = self.inputs(x).split(widths, dim=-1)
        convolved = self.conv(conv_inputs, mask)
        u, BC = convolved.split([self.inner, self.bc_width], dim=-1)

        # All sets share the bias of Δ.
        logits = upcast(delta_inputs) + self.step_bias.repeat(self.num_sets)
        delta = F.softplus(logits)
        if mask is not None:
            # Padding leaves the state unchanged: a step of zero neither decays the state nor writes to it.
            is_padding = ~mask[..., None]  # (N,L,1)
            delta = delta.masked_fill(is_padding, 0)
        return z, u, BC, delta

    def scan(
        self,
        u: Float[Tensor, "N L inner"],
        BC: Float[Tensor, "N L BC"],
        delta: Float[Tensor, "N L H"],
        *,
        bidirectional: bool,
    ) -> Float[Tensor, "N L H E"]:
        """Compute C_tᵀ S_t for every head, from the left or in both directions; D u_t is added later."""
        heads = self.sizes.heads
        # All heads share B and C.
        B, C = BC.chunk(2, dim=-1)  # (N,L,n)
        B = B[:, None].expand(-1, heads, -1, -1)  # (N,H,L,n)
        C = C[:, None].expand(-1, heads, -1, -1)  # (N,H,L,n)
        values = split_heads(u, heads) * delta.mT[..., None]  # (N,H,L,E)
        A = -self.log_A.exp()  # (H,)
        log_decay = (A * delta).mT  # (N,H,L)
        out = scalar_decay_attention(C, B, values, log_decay, scale=1.0, bidirectional=bidirectional)
        return out.transpose(1, 2)

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        z, u, BC, delta = self.project(x, mask)
        out = self.scan(u, BC, delta, bidirectional=not self.causal)  # (N,L,H,E)
        u_heads = u.unflatten(-1, (self.sizes.heads, -1))
        out = out + self.D[:, None] * u_heads

        # The gate comes before the norm.
        gated = out.flatten(2) * F.silu(z)  # (N,L,inner)
        return self.output(self.norm(gated).to(x.dtype))


class Hydra(Mamba2):
    """A quasiseparable mixer: Mamba-2 in both directions over the other tokens, plus a diagonal for the token itself.

    y_i = l_(i-1) + r_(i+1) + (W_D u_i + D) u_i, where l and r are the outputs of the scans from the left and from the
    right, and W_D u_i and D have one entry per head; then RMSNorm(y) silu(z) and a linear map to dim. So token i reads
    the two states with the C of its real neighbours, not with its own, as in the release. B, C and Δ of the two
    directions are separate; u, z, A and the bias of Δ are shared. The short convolution is centred unless ``causal``.
    O(L b (n + E) + L n E) time per head and direction with chunks of b = 64 tokens.

    Args:
        conv: tokens that the short convolution sees, 7 as released.
        options: further options of ``Mamba2``; with ``causal`` the layer has the scan from the left and the diagonal
            alone.

    Source: the paper, section 3; the shift and initial values of its released code. The scans are in
    ``lra/reference/decay_attention.py``.
    """

    def __init__(self, sizes: Sizes, *, dim: int, conv: Positive = 7, **options):
        super().__init__(sizes, dim=dim, conv=conv, **options)
        self.diagonal = nn.Linear(self.inner, sizes.heads, bias=False)

    def count_sets(self) -> int:
        return 1 if self.causal else 2

    def initial_log_A(self, heads: int) -> Float[Tensor, " H"]:
        """A starts at -1."""
        return torch.zeros(heads)

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        z, u, BC, delta = self.project(x, mask)
        if self.causal:
            outputs = self.scan(u, BC, delta, bidirectional=False)
            out = _shift(outputs, mask)  # (N,L,H,E)
        else:
            # Both directions are one batch: the second half of the examples runs from right to left.
            BC_left, BC_right = BC.chunk(2, dim=-1)
            delta_left, delta_right = delta.chunk(2, dim=-1)
            u_both = torch.cat([u, u.flip(1)])  # (2 N,L,inner)
            BC_both = torch.cat([BC_left, BC_right.flip(1)])  # (2 N,L,2 n)
            delta_both = torch.cat([delta_left, delta_right.flip(1)])  # (2 N,L,H)
            outputs = self.scan(u_both, BC_both, delta_both, bidirectional=False)
            mask_both = None if mask is None else torch.cat([mask, mask.flip(1)])
            from_left, from_right = _shift(outputs, mask_both).chunk(2)
            out = from_left + from_right.flip(1)  # (N,L,H,E)

        # The diagonal: the token itself.
        diagonal = self.diagonal(u) + self.D  # (N,L,H)
        u_heads = u.unflatten(-1, (self.sizes.heads, -1))
        out = out + diagonal[..., None] * u_heads

        # The gate comes after the norm.
        normed = self.norm(out.flatten(2))  # (N,L,inner)
        gated = normed * F.silu(z)
        return self.output(gated.to(x.dtype))


def _shift(x: Float[Tensor, "N L H E"], mask: Bool[Tensor, "N L"] | None) -> Float[Tensor, "N L H E"]:
    """Give every token the entry of the real token before it; the first real token gets zero."""
    first = torch.zeros_like(x[:, :1])
    if mask is None:
        return torch.cat([first, x[:, :-1]], dim=1)
    # Entry 0 is the zero, entry 1 + j belongs to token j.
    entries = torch.cat([first, x], dim=1)  # (N,1+L,H,E)
    numbers = torch.arange(1, 1 + mask.shape[1], device=x.device)
    last_real = (numbers * mask).cummax(1).values  # (N,L)
    before = F.pad(last_real[:, :-1], (1, 0))
    example = torch.arange(len(x), device=x.device)
    return entries[example[:, None], before]
