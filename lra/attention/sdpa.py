"""Softmax attention by torch's fused kernels: the opponent that an efficient mechanism has to beat."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops import varlen_attention
from .base import Attention, Sizes


class SDPA(Attention):
    """Compute ``Softmax`` in O(L) memory, in the dtype of its inputs.

    Args:
        sizes: its dropout acts on the weights; on a CPU a dropout above 0 makes torch take its quadratic path.
        causal: whether a query attends only to keys up to its own position.
    """

    drops = True
    hole_free = True

    def __init__(self, sizes: Sizes, *, causal: bool = False):
        super().__init__(sizes)
        self.causal = causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        attn_mask = None if mask is None else mask[:, None, None, :]  # (N,1,1,L)
        if self.causal and mask is not None:
            # A padded query also attends to itself, or it might attend to nothing.
            lower = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
            diagonal = lower & lower.mT
            attn_mask = (attn_mask & lower) | diagonal  # (N,1,L,L)
        is_causal = self.causal and mask is None
        return F.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p=self._dropout(), is_causal=is_causal)

    def varlen(self, q, k, v, layout):
        if self.causal:
            return super().varlen(q, k, v, layout)
        return varlen_attention.attend(q, k, v, layout, dropout_p=self._dropout())

    def _dropout(self) -> float:
        return self.sizes.dropout if self.training else 0.0
