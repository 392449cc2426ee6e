"""What a transfer is measured against: attention that looks at nothing.

    python -m lra.studies.transfer run=<folder> attn=custom attn._target_=lra.studies.transfer.control.Mean

Where a run keeps its score with it, the attention hardly matters, and a mechanism that keeps the score shows little.
"""

import torch
from torch import Tensor

from ...attention.base import Attention


class Mean(Attention):
    """The mean of the values over the real tokens, the same for every query; scores and position bias are not read."""

    takes_bias = True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, bias=None) -> Tensor:
        if mask is None:
            return v.mean(-2, keepdim=True).expand_as(v)
        real = mask[:, None, :, None]
        count = real.sum(-2, keepdim=True).clamp(min=1)
        return (v.masked_fill(~real, 0).sum(-2, keepdim=True) / count).expand_as(v)


class Zero(Attention):
    """Nothing at all."""

    takes_bias = True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, bias=None) -> Tensor:
        return torch.zeros_like(v)
