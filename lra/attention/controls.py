"""Controls: what an encoder reaches without attention. A mechanism is worth what it adds over them.

Both keep the projections of every other Attention, so that weights, initial values and parameter counts are the same;
those of queries and keys get a gradient of zero.
"""

from torch import Tensor

from ..varlen import VarlenLayout
from .base import Attention


class Mean(Attention):
    """The mean of the values of the real tokens, for every query: softmax attention with all scores equal."""

    hole_free = True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return v.mean(2, keepdim=True).expand_as(v)
        real = mask[:, None, :, None]
        return ((v * real).sum(2, keepdim=True) / real.sum(2, keepdim=True).clamp(min=1)).expand_as(v)

    def varlen(self, q: Tensor, k: Tensor, v: Tensor, layout: VarlenLayout) -> Tensor:
        return layout.join(row.mean(1, keepdim=True).expand_as(row) for row in layout.rows(v))


class Identity(Attention):
    """The value of the token itself: nothing passes from one token to another."""

    hole_free = True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        return v

    def varlen(self, q: Tensor, k: Tensor, v: Tensor, layout: VarlenLayout) -> Tensor:
        return v
