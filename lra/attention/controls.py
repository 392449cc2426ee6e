"""Controls: the accuracy of an encoder without attention. A mechanism is worth what it adds to them.

Both keep the projections of every other ``Attention``, so that weights, initial values and parameter counts are the
same. The projections of queries and keys get a gradient of zero.
"""

from torch import Tensor

from ..varlen import VarlenLayout
from .base import Attention


class Mean(Attention):
    """Return the mean value of the real tokens for every query: softmax attention with equal scores."""

    hole_free = True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return v.mean(2, keepdim=True).expand_as(v)
        real = mask[:, None, :, None]  # (N,1,L,1)
        total = (v * real).sum(2, keepdim=True)
        num_real = real.sum(2, keepdim=True).clamp(min=1)
        return (total / num_real).expand_as(v)

    def varlen(self, q: Tensor, k: Tensor, v: Tensor, layout: VarlenLayout) -> Tensor:
        means = (sequence.mean(1, keepdim=True).expand_as(sequence) for sequence in layout.sequences(v))
        return layout.join(means)


class Identity(Attention):
    """Return the value of each token: no information passes between tokens."""

    hole_free = True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        return v

    def varlen(self, q: Tensor, k: Tensor, v: Tensor, layout: VarlenLayout) -> Tensor:
        return v
