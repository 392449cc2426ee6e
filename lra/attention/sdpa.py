"""Exact attention through torch's fused kernels: the opponent that an efficient mechanism has to beat."""

import torch
import torch.nn.functional as F

from ..ops import varlen_attention
from .base import Attention, Sizes


class SDPA(Attention):
    """The same numbers as ``Softmax`` in O(L) memory, in the dtype it is given.

    ``dropout`` acts on the weights; on a CPU anything above 0 takes torch's quadratic path. causal: a query sees the
    keys up to its own.
    """

    drops = True
    hole_free = True

    def __init__(self, sizes: Sizes, *, causal: bool = False):
        super().__init__(sizes)
        self.causal = causal

    def forward(self, q, k, v, mask=None):
        keys = None if mask is None else mask[:, None, None, :]
        if self.causal and mask is not None:  # a padded query sees itself, or it might see nothing
            every = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
            keys = keys & every.tril() | every.tril() & every.triu()
        causal = self.causal and mask is None
        return F.scaled_dot_product_attention(q, k, v, keys, dropout_p=self._dropout(), is_causal=causal)

    def varlen(self, q, k, v, layout):
        if self.causal:
            return super().varlen(q, k, v, layout)
        return varlen_attention.attend(q, k, v, layout, dropout_p=self._dropout())

    def _dropout(self) -> float:
        return self.sizes.dropout if self.training else 0.0
