"""Exact attention, written out: the baseline of every speed and memory comparison."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute

from ..linalg import at_least_float32
from .base import Attention


class Softmax(Attention):
    """softmax(q kᵀ / √D) v (Vaswani et al. 2017) with dropout on the weights, in float32 as in the published protocol.

    ``checkpoint`` recomputes the n x n weights in the backward pass instead of keeping them (protocols.yaml,
    nystromformer_small).
    """

    def __init__(self, *, heads, head_dim, value_dim, length, dropout=0.0, checkpoint: bool = False):
        super().__init__(heads=heads, head_dim=head_dim, value_dim=value_dim, length=length, dropout=dropout)
        self.checkpoint = checkpoint

    def forward(self, q, k, v, mask=None):
        if self.checkpoint and torch.is_grad_enabled():
            return recompute(self._attend, q, k, v, mask, use_reentrant=False)
        return self._attend(q, k, v, mask)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            q, k, v = at_least_float32(q, k, v)
            scores = q * q.shape[-1] ** -0.5 @ k.mT  # (N,H,L,L)
            if mask is not None:
                scores = scores.masked_fill(~mask[:, None, None, :], float("-inf"))
            return F.dropout(scores.softmax(-1), self.dropout, self.training) @ v
