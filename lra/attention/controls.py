"""Controls: encoders without attention, attn=mean and attn=none. Compare a mechanism's accuracy with theirs.

Both have the projections of softmax attention, so that the weights have the same shapes, number and initial values.
``Multihead.inputs`` is one matrix for queries, keys and values; its rows for queries and keys get a gradient of zero.
"""

from jaxtyping import Bool, Float
from torch import Tensor

from ..varlen import VarlenLayout
from .base import Attention


class Mean(Attention):
    """Return the mean value of the real tokens for every query, in O(L E) time: softmax attention with equal scores."""

    compactable = True

    def forward(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N H L E"]:
        if mask is None:
            mean = v.mean(2, keepdim=True)  # (N,H,1,E)
            return mean.expand_as(v)
        is_real = mask[:, None, :, None]  # (N,1,L,1)
        total = (v * is_real).sum(2, keepdim=True)  # (N,H,1,E)
        num_real = is_real.sum(2, keepdim=True).clamp(min=1)
        return (total / num_real).expand_as(v)

    def varlen(
        self,
        q: Float[Tensor, "1 H T D"],
        k: Float[Tensor, "1 H T D"],
        v: Float[Tensor, "1 H T E"],
        layout: VarlenLayout,
    ) -> Float[Tensor, "1 H T E"]:
        means = []
        for sequence in layout.sequences(v):
            mean = sequence.mean(1, keepdim=True)  # (H,1,E)
            means.append(mean.expand_as(sequence))
        return layout.join(means)


class Identity(Attention):
    """Return the value of each token in O(1) time: no information passes between tokens."""

    compactable = True

    def forward(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N H L E"]:
        return v

    def varlen(
        self,
        q: Float[Tensor, "1 H T D"],
        k: Float[Tensor, "1 H T D"],
        v: Float[Tensor, "1 H T E"],
        layout: VarlenLayout,
    ) -> Float[Tensor, "1 H T E"]:
        return v
