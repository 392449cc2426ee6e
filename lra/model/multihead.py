"""The projections around an attention mechanism, which give all mechanisms the same state_dict keys."""

from collections.abc import Callable

from torch import Tensor, nn

from ..attention.base import Attention, Mixer, Sizes
from ..ops.rotary import rotate
from ..varlen import VarlenLayout


class Multihead(Mixer):
    """Linear projections with bias to H heads, the mechanism, and the output projection: (N,L,d) -> (N,L,d).

    Queries, keys and values come from one matrix; a mechanism with ``shares_qk`` has one projection for queries and
    keys.

    Args:
        attention: a factory that takes ``Sizes``.
        dim, heads, head_dim, length: sizes.
        rotary: whether queries and keys are rotated by their positions, see ``lra.ops.rotary``.

    Raises:
        ValueError: rotary positions with an odd head_dim.
    """

    def __init__(
        self,
        attention: Callable[[Sizes], Attention],
        *,
        dim: int,
        heads: int,
        head_dim: int,
        length: int,
        rotary: bool = False,
    ):
        super().__init__(Sizes(heads=heads, head_dim=head_dim, value_dim=head_dim, length=length), dim=dim)
        if rotary and head_dim % 2:
            raise ValueError(f"head_dim must be even for rotary positions, not {head_dim}")
        self.rotary = rotary
        self.attention = attention(self.sizes)
        self.causal = self.attention.causal
        self.hole_free = self.attention.hole_free and not rotary  # whose angles are of places in the row
        self.widths = [heads * head_dim] * (2 if self.attention.shares_qk else 3)
        self.inputs = nn.Linear(dim, sum(self.widths))
        self.output = nn.Linear(self.widths[-1], dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._join(self.attention(*self._project(x, None), mask), x)

    def varlen(self, x: Tensor, layout: VarlenLayout) -> Tensor:
        """Mix packed rows: (1,T,d) -> (1,T,d)."""
        return self._join(self.attention.varlen(*self._project(x, layout.positions), layout), x)

    def _project(self, x: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Project (N,L,d) to q, k (N,H,L,D) and v (N,H,L,E)."""
        parts = self.inputs(x).split(self.widths, -1)
        *qk, v = (part.unflatten(-1, (self.sizes.heads, -1)).transpose(1, 2) for part in parts)
        if self.rotary:
            qk = [rotate(part, positions) for part in qk]
        return qk[0], qk[-1], v

    def _join(self, mixed: Tensor, x: Tensor) -> Tensor:
        """Join heads and project: (N,H,L,E) -> (N,L,d), in the dtype of x."""
        return self.output(mixed.transpose(1, 2).flatten(2).to(x.dtype))
