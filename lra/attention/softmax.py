"""Softmax attention that materialises the attention map.

``lra/reference/softmax.py`` has the same equation for one head of one sequence.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
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
        weights: ``softmax``, or ``laplace``, MEGA's function of each score (``lra.ops.attention_maps``), for which the
            scores are divided by the number of real keys instead of √D.
        checkpoint: whether the backward pass recomputes the (L,L) weights instead of storing them, as in the released
            Nystromformer (docs/sources.md).
    """

    has_dropout = True
    supports_bias = True
    compactable = True

    def __init__(self, sizes: Sizes, *, weights: Weights = "softmax", checkpoint: bool = False):
        super().__init__(sizes)
        self.weights = weights
        self.checkpoint = checkpoint

    def forward(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None = None,
        bias: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> Float[Tensor, "N H L E"]:
        if self.checkpoint and torch.is_grad_enabled():
            return recompute(self._attend, q, k, v, mask, bias, use_reentrant=False)
        return self._attend(q, k, v, mask, bias)

    @full_precision
    def _attend(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None,
        bias: Callable[[Tensor, Tensor], Tensor] | None,
    ) -> Float[Tensor, "N H L E"]:
        scale = score_scale(self.weights, q, mask)
        scores = (q * scale) @ k.mT  # (N,H,L,L)
        score_bias = None
        if bias is not None:
            positions = torch.arange(q.shape[2], device=q.device)
            score_bias = bias(positions, positions)  # (L,L)

        # Weights of the real keys.
        mask = ensure_nonempty(mask)
        key_mask = None if mask is None else mask[:, None]
        weights = attention_weights(scores, key_mask, self.weights, score_bias)
        return F.dropout(weights, self.sizes.dropout, self.training) @ v
