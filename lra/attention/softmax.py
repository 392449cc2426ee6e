"""Softmax attention, written out: the baseline of every speed and memory comparison.

``lra/reference/softmax.py`` has the same equation for one head of one sequence.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute

from ..ops.attention_maps import Weights, attention_weights, ensure_nonempty, score_scale
from ..ops.precision import full_precision
from .base import Attention, Sizes


class Softmax(Attention):
    """softmax(q kᵀ / √D) v (Vaswani et al. 2017, equation 1), in float32 as in the published protocol.

    O(L² (D + E)) time and O(L²) memory. ``forward`` takes a position bias, which is added to the scores.

    Args:
        sizes: its dropout acts on the weights.
        weights: ``softmax``, or ``laplace``, MEGA's function of each score (``lra.ops.attention_maps``).
        checkpoint: whether the backward pass recomputes the (L,L) weights instead of storing them, as in the released
            Nystromformer (docs/sources.md).
    """

    drops = True
    takes_bias = True
    hole_free = True

    def __init__(self, sizes: Sizes, *, weights: Weights = "softmax", checkpoint: bool = False):
        super().__init__(sizes)
        self.weights = weights
        self.checkpoint = checkpoint

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        bias: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> Tensor:
        if self.checkpoint and torch.is_grad_enabled():
            return recompute(self._attend, q, k, v, mask, bias, use_reentrant=False)
        return self._attend(q, k, v, mask, bias)

    @full_precision
    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Callable | None) -> Tensor:
        scores = q * score_scale(self.weights, q, mask) @ k.mT  # (N,H,L,L)
        positions = torch.arange(q.shape[2], device=q.device)
        score_bias = None if bias is None else bias(positions, positions)
        mask = ensure_nonempty(mask)
        key_mask = None if mask is None else mask[:, None]
        weights = attention_weights(scores, key_mask, self.weights, score_bias)
        return F.dropout(weights, self.sizes.dropout, self.training) @ v
