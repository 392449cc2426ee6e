"""LION, full linear attention with decays in both directions (Afzal et al., 2025)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.precision import full_precision, upcast
from ..ops.scalar_decay import scalar_decay_attention
from .base import Mixer, Sizes
from .gated import decays_by_horizon, merge_heads, split_heads


class LionS(Mixer):
    """o_i = Σ_j M_ij (φ(q_i)·φ(k_j)) v_j / Σ_j M_ij φ(q_i)·φ(k_j) with decays M_ij = Π λ_t between tokens i and j.

    λ_t = 1 - σ(w·x_t + b) depends on the token (LION-S). The decay of the key counts and the one of the query does not
    (eq. 9 of the paper). φ(x) = (silu(x) + ½) / |silu(x) + ½| has positive entries, so the denominator cannot vanish.
    O(L C (D + E) + L D E) time with chunks of C = 64 tokens; a state of H D (E + 1) numbers for each direction.

    The decays start with horizons from 2 tokens to the sequence length, spread over the heads. The paper starts its
    Long Range Arena models "HiPPO-like" and has not released how, so this is the suite's choice.

    Args:
        causal: only earlier tokens and the token itself.

    Source: the paper, sections 3.2 and 4. Its released code cuts the gradient of λ, which is not copied. In plain
    torch: ``lra/reference/retention.py``.
    """

    hole_free = True

    def __init__(self, sizes: Sizes, *, dim: int, causal: bool = False):
        super().__init__(sizes, dim=dim)
        self.causal = causal
        # Numerator and denominator.
        self.state_size = sizes.heads * sizes.head_dim * (sizes.head_dim + 1)
        self.inputs = nn.Linear(dim, 3 * sizes.heads * sizes.head_dim)
        self.output = nn.Linear(sizes.heads * sizes.head_dim, dim)
        decays = decays_by_horizon(sizes.heads, 2, sizes.length)
        self.make_gate(dim, decays)

    def make_gate(self, dim: int, log_decays: Tensor) -> None:
        """Create the parameters of the decays, which start at these values."""
        self.gate = nn.Linear(dim, self.sizes.heads)
        with torch.no_grad():
            # 1 - σ(-logit λ) = λ
            self.gate.bias.copy_(-torch.logit(log_decays.exp()))

    def log_decay(self, x: Tensor) -> Tensor:
        """log λ of each token and head, (N,H,L): log(1 - σ(y)) = logsigmoid(-y)."""
        return F.logsigmoid(-upcast(self.gate(x))).mT

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (split_heads(part, self.sizes.heads) for part in self.inputs(x).chunk(3, -1))  # (N,H,L,D)
        log_decay = self.log_decay(x)
        if mask is not None:
            # A padded token is the identity: it writes nothing and does not decay the state.
            log_decay = log_decay.masked_fill(~mask[:, None], 0)
        return self.output(merge_heads(self.attend(q, k, v, log_decay, mask)).to(x.dtype))

    @full_precision
    def attend(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, mask: Tensor | None) -> Tensor:
        """Numerator and denominator by one recurrence: a column of ones is appended to the values."""
        q = _feature_map(q)
        k = _feature_map(k)
        v = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
        if mask is not None:
            k = k * mask[:, None, :, None]
        options = {"scale": 1.0, "bidirectional": not self.causal, "key_decays": True}
        sums = scalar_decay_attention(q, k, v, log_decay, **options)
        if mask is not None:
            # A padded query may see no key at all.
            sums = torch.where(mask[:, None, :, None], sums, 1)
        return sums[..., :-1] / sums[..., -1:]


class LionD(LionS):
    """LION with one learned decay λ = σ(a) for each head (LION-D)."""

    def make_gate(self, dim: int, log_decays: Tensor) -> None:
        self.gate = nn.Parameter(torch.logit(log_decays.exp()))

    def log_decay(self, x: Tensor) -> Tensor:
        return F.logsigmoid(self.gate)[None, :, None].expand(len(x), -1, x.shape[1])


def _feature_map(x: Tensor) -> Tensor:
    return F.normalize(F.silu(x) + 0.5, dim=-1)
