"""Controls of a transfer: attention that reads neither queries nor keys.

    python -m lra.studies.transfer run=<folder> attn=custom attn._target_=lra.studies.transfer.control.MeanControl

If a run keeps its score with a control, its attention hardly matters, and its score cannot compare mechanisms.
"""

import torch
from torch import Tensor

from ...attention.base import Attention
from ...attention.controls import Mean


class MeanControl(Mean):
    """Return the mean of the values over the real tokens; a position bias is ignored."""

    supports_bias = True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, bias=None) -> Tensor:
        return super().forward(q, k, v, mask)


class ZeroControl(Attention):
    """Return zero for every query; a position bias is ignored."""

    supports_bias = True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, bias=None) -> Tensor:
        return torch.zeros_like(v)
