"""Exact attention, written out: the baseline of every speed and memory comparison."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute

from ..ops.attention_maps import Weights, attention_weights, score_scale
from ..ops.precision import full_precision
from .base import Attention, Sizes


class Softmax(Attention):
    """softmax(q kᵀ / √D) v (Vaswani et al. 2017) with dropout on the weights, in float32 as in the published protocol.

    ``checkpoint`` recomputes the n x n weights in the backward pass instead of keeping them (docs/sources.md,
    Nystromformer). ``weights=laplace`` puts MEGA's function of each score in the softmax's place, see
    ``lra.ops.scores``; bias(rows, cols) is a position bias on the scores.
    """

    drops = True
    takes_bias = True
    hole_free = True

    def __init__(self, sizes: Sizes, *, weights: Weights = "softmax", checkpoint: bool = False):
        super().__init__(sizes)
        self.weights, self.checkpoint = weights, checkpoint

    def forward(self, q, k, v, mask=None, bias: Callable[[Tensor, Tensor], Tensor] | None = None):
        if self.checkpoint and torch.is_grad_enabled():
            return recompute(self._attend, q, k, v, mask, bias, use_reentrant=False)
        return self._attend(q, k, v, mask, bias)

    @full_precision
    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Callable | None) -> Tensor:
        every = torch.arange(q.shape[2], device=q.device)
        scores = q * score_scale(self.weights, q, mask) @ k.mT  # (N,H,L,L)
        keys = None if mask is None else mask[:, None]
        weights = attention_weights(scores, keys, self.weights, None if bias is None else bias(every, every))
        return F.dropout(weights, self.sizes.dropout, self.training) @ v
