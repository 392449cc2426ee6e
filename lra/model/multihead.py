"""The projections around an attention mechanism, in one place, so that mechanisms share their state_dict keys."""

from collections.abc import Callable

from torch import Tensor, nn

from ..attention.base import Attention, Mixer
from ..ops.varlen import VarlenLayout


class Multihead(Mixer):
    """Linear projections with bias to H heads, the mechanism, and the output projection: (N,L,d) -> (N,L,d).

    With ``lra.ops.varlen.VarlenLayout`` in the place of the mask x is packed, and padded for a mechanism that does not
    pack.

    attention: a factory that takes heads, head_dim, value_dim and length. Queries, keys and values come from one
    matrix; a mechanism with ``shares_qk`` has one projection for queries and keys.
    """

    def __init__(
        self,
        attention: Callable[..., Attention],
        *,
        dim: int,
        heads: int,
        head_dim: int,
        length: int,
        value_dim: int | None = None,
    ):
        super().__init__(dim=dim, heads=heads, head_dim=head_dim, length=length)
        value_dim = value_dim or head_dim
        self.attention = attention(heads=heads, head_dim=head_dim, value_dim=value_dim, length=length)
        qk = [heads * head_dim] * (1 if self.attention.shares_qk else 2)
        self.widths = [*qk, heads * value_dim]
        self.inputs = nn.Linear(dim, sum(self.widths))
        self.output = nn.Linear(heads * value_dim, dim)

    def forward(self, x: Tensor, mask: Tensor | VarlenLayout | None = None) -> Tensor:
        parts = self.inputs(x).split(self.widths, -1)
        *qk, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)  # (N,H,L,D or E)
        if isinstance(mask, VarlenLayout) and not self.attention.packs:
            q, k, v = (mask.unpack(part, 2) for part in (qk[0], qk[-1], v))
            mixed = mask.pack(self.attention(q, k, v, mask.mask), 2)
        else:
            mixed = self.attention(qk[0], qk[-1], v, mask)  # (N,H,L,E)
        return self.output(mixed.transpose(1, 2).flatten(2).to(x.dtype))
