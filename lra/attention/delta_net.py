"""DeltaNet (Yang et al., NeurIPS 2024) and Gated DeltaNet (Yang et al., ICLR 2025)."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..ops.delta_rule import delta_rule_attention
from ..ops.precision import upcast
from ..options import Above, Positive
from .base import Mixer, Sizes, merge_heads, split_heads
from .recurrent_parts import ShortConvolution, initial_step_biases


class DeltaNet(Mixer):
    """S_t = (I - β_t k_t k_tᵀ) S_(t-1) + β_t k_t v_tᵀ, o_t = D^-1/2 q_tᵀ S_t; then a norm for each head.

    A write replaces what the state holds under its key instead of adding to it. q, k and v are linear maps of x,
    followed by a short convolution and SiLU; q and k have unit length; β = σ(W_β x). An output projection follows the
    norm. Values are as wide as keys, E = D. O(L C D + L D²) time per head with chunks of C = 64 tokens; a state of H D²
    numbers per direction.

    Args:
        causal: whether a token sees only itself and earlier tokens, as published. Otherwise the recurrence also runs
            from the right, with the same parameters, and both outputs are added; from the right a token reads the state
            before its own write. The short convolution then sees later tokens too.
        width: tokens that the short convolution sees: the token and width - 1 earlier ones if causal, else
            (width - 1) // 2 earlier and width // 2 later ones.
        negative: β in (0, 2) instead of (0, 1), so that I - β k kᵀ may have a negative eigenvalue (Grazzi et al. 2025).

    Source: the paper, sections 2.2 and 3.3. In plain torch: ``lra/reference/delta_rule.py``.
    """

    def __init__(self, sizes: Sizes, *, dim: int, causal: bool = False, width: Positive = 4, negative: bool = False):
        super().__init__(sizes, dim=dim)
        self.causal = causal
        self.negative = negative
        inner = sizes.heads * sizes.head_dim
        self.state_size = inner * sizes.head_dim
        self.inputs = nn.Linear(dim, 3 * inner, bias=False)
        self.conv = ShortConvolution(3 * inner, width, causal=causal)
        self.beta = nn.Linear(dim, sizes.heads, bias=False)
        self.norm = nn.RMSNorm(sizes.head_dim, eps=1e-5)
        self.output = nn.Linear(inner, dim, bias=False)

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        out = self.recurrence(x, mask, log_decay=None)  # (N,H,L,E)
        normed = merge_heads(self.norm(out))  # (N,L,H E)
        return self.output(normed.to(x.dtype))

    def recurrence(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None,
        log_decay: Float[Tensor, "N H L"] | None,
    ) -> Float[Tensor, "N H L E"]:
        """Run the delta rule over the tokens."""
        projected = self.conv(self.inputs(x), mask)  # (N,L,3 H D)
        q, k, v = (split_heads(part, self.sizes.heads) for part in projected.chunk(3, -1))
        q = _unit(q)  # (N,H,L,D)
        k = _unit(k)  # (N,H,L,D)

        # Strength β of each write.
        beta = self.beta(x).sigmoid().mT  # (N,H,L)
        if self.negative:
            beta = 2 * beta
        if mask is not None:
            # Padding leaves the state unchanged: it writes nothing.
            is_padding = ~mask[:, None]  # (N,1,L)
            beta = beta.masked_fill(is_padding, 0)
        return delta_rule_attention(q, k, v, beta, log_decay, bidirectional=not self.causal)


class GatedDeltaNet(DeltaNet):
    """DeltaNet whose state decays by α_t = exp(-A softplus(W_α x_t + b)) before each write, and with an output gate.

    Output W_o(silu(W_g x) RMSNorm(o)). A is drawn uniformly from (0.01, 16), softplus(b) log-uniformly between step_min
    and step_max. O(L C D + L D²) time per head with chunks of C = 64 tokens.

    Args:
        step_min, step_max: range of the initial softplus(b).
        options: further options of ``DeltaNet``: causal, width, negative.

    Raises:
        ValueError: step_max is below step_min.

    Source: the paper, section 3; b starts as in the released code, which draws A from (0, 16). Linear maps and the
    short convolution start as PyTorch's layers. In plain torch: ``lra/reference/delta_rule.py``.
    """

    def __init__(self, sizes: Sizes, *, dim: int, step_min: Above = 0.001, step_max: Above = 0.1, **options):
        super().__init__(sizes, dim=dim, **options)
        heads = sizes.heads
        inner = heads * sizes.head_dim
        self.decay = nn.Linear(dim, heads, bias=False)
        self.decay_bias = nn.Parameter(initial_step_biases(heads, step_min, step_max))
        # A must not start at 0, because its logarithm would be -inf.
        A = torch.empty(heads).uniform_(1e-2, 16)
        self.log_A = nn.Parameter(A.log())
        # Parameters in ``rates`` have no weight decay, and ``optim.own_lr_max`` caps their learning rate.
        self.rates = {"decay_bias": 1.0, "log_A": 1.0}
        self.gate = nn.Linear(dim, inner, bias=False)

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        # log α = -A softplus(W_α x + b)
        logits = upcast(self.decay(x)) + self.decay_bias  # (N,L,H)
        A = self.log_A.exp()
        log_decay = -(A * F.softplus(logits)).mT  # (N,H,L)
        if mask is not None:
            # Padding leaves the state unchanged: it does not decay.
            is_padding = ~mask[:, None]  # (N,1,L)
            log_decay = log_decay.masked_fill(is_padding, 0)
        out = self.recurrence(x, mask, log_decay)  # (N,H,L,E)

        # Norm of each head, then the gate.
        normed = merge_heads(self.norm(out))  # (N,L,H E)
        gated = F.silu(self.gate(x)) * normed
        return self.output(gated.to(x.dtype))


def _unit(x: Float[Tensor, "N H L D"]) -> Float[Tensor, "N H L D"]:
    """Scale each head's vector to unit length: x / sqrt(Σ x² + 1e-6)."""
    x = upcast(x)
    squares = x.square().sum(-1, keepdim=True)  # (N,H,L,1)
    return x * (squares + 1e-6).rsqrt()
