"""Multi-head attention: the linear projections around an attention mechanism, and rotary positions.

The names of the projections in the state_dict are the same for all mechanisms; parameters of a mechanism are under
"attention.".
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..attention.base import Attention, Mixer, Sizes, merge_heads, split_heads
from ..varlen import VarlenLayout

# Pair i of D/2 rotates by ROTARY_BASE^(-2i/D) per position; i = 0 is the fastest.
ROTARY_BASE = 10_000.0


class Multihead(Mixer):
    """Multi-head attention: input projections, the mechanism, output projection.

    One matrix with bias projects to queries, keys and values. A mechanism with ``shared_qk`` has one projection for
    queries and keys.

    Args:
        attention: a factory that takes ``Sizes``.
        dim: d.
        heads: H.
        head_dim: D, the width of a head.
        length: maximum sequence length.
        rotary: whether queries and keys get rotary positions, see ``rotate``.

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
        sizes = Sizes(heads=heads, head_dim=head_dim, value_dim=head_dim, length=length)
        super().__init__(sizes, dim=dim)
        if rotary and head_dim % 2:
            raise ValueError(f"head_dim must be even for rotary positions, not {head_dim}")
        self.rotary = rotary
        self.attention = attention(self.sizes)
        self.causal = self.attention.causal
        # Rotary angles come from a token's index in its padded sequence, which compaction changes.
        self.compactable = self.attention.compactable and not rotary
        num_projections = 2 if self.attention.shared_qk else 3
        self.widths = [heads * head_dim] * num_projections
        self.inputs = nn.Linear(dim, sum(self.widths))
        self.output = nn.Linear(self.widths[-1], dim)

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        q, k, v = self._project(x, None)
        mixed = self.attention(q, k, v, mask)
        return self._join(mixed, x)

    def varlen(self, x: Float[Tensor, "1 T d"], layout: VarlenLayout) -> Float[Tensor, "1 T d"]:
        """Mix packed sequences."""
        q, k, v = self._project(x, layout.positions)
        mixed = self.attention.varlen(q, k, v, layout)
        return self._join(mixed, x)

    def _project(
        self,
        x: Float[Tensor, "N L d"],
        positions: Int[Tensor, " L"] | None,
    ) -> tuple[Float[Tensor, "N H L D"], Float[Tensor, "N H L D"], Float[Tensor, "N H L E"]]:
        """Project to q, k and v."""
        projections = self.inputs(x).split(self.widths, -1)  # (N,L,H D) each
        *qk, v = [split_heads(part, self.sizes.heads) for part in projections]
        if self.rotary:
            qk = [rotate(part, positions) for part in qk]
        # With shared_qk there is one tensor for both.
        q = qk[0]
        k = qk[-1]
        return q, k, v

    def _join(
        self,
        mixed: Float[Tensor, "N H L E"],
        x: Float[Tensor, "N L d"],
    ) -> Float[Tensor, "N L d"]:
        """Join heads and project, in the dtype of x. Raises ValueError if the mechanism returned another shape."""
        expected = (x.shape[0], self.sizes.heads, x.shape[1], self.sizes.value_dim)
        if mixed.shape != expected:
            name = type(self.attention).__name__
            raise ValueError(f"{name}.forward must return (N,H,L,E) = {expected}, not {tuple(mixed.shape)}")
        merged = merge_heads(mixed)  # (N,L,H E)
        return self.output(merged.to(x.dtype))


def rotate(
    x: Float[Tensor, "*heads L D"],
    positions: Int[Tensor, "L"] | None = None,
) -> Float[Tensor, "*heads L D"]:
    """Rotate pairs of features by angles proportional to the position, so that q·k depends on the distance.

    Features i and D/2 + i are one pair, rotated by the angle position · ROTARY_BASE^(-2i/D).

    Args:
        x: queries or keys; D is even.
        positions: position of each token, None for 0 to L - 1.

    Returns:
        The rotated vectors, in the dtype of x; angles are computed in float32 or more.

    Source: Su et al. 2021 (RoFormer), section 3.2.
    """
    *_, L, D = x.shape
    dtype = torch.promote_types(x.dtype, torch.float32)
    if positions is None:
        positions = torch.arange(L, device=x.device)

    # The angle of each position and pair.
    two_i = torch.arange(0, D, 2, device=x.device, dtype=dtype)
    frequency = ROTARY_BASE ** (-two_i / D)  # (D/2,)
    columns = positions.to(dtype)[:, None]  # (L,1)
    angle = columns * frequency  # (L,D/2)
    cos = angle.cos()
    sin = angle.sin()

    # Rotate the pairs (first, second).
    wide = x.to(dtype)
    first, second = wide.chunk(2, -1)  # (...,L,D/2)
    rotated_first = first * cos - second * sin
    rotated_second = first * sin + second * cos
    rotated = torch.cat([rotated_first, rotated_second], -1)  # (...,L,D)
    return rotated.to(x.dtype)
