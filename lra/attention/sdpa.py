"""Exact attention through torch's fused kernels: the opponent that an efficient mechanism has to beat."""

import torch.nn.functional as F

from .base import Attention


class SDPA(Attention):
    """The same numbers as ``Softmax`` in O(L) memory, in the dtype it is given.

    ``dropout`` acts on the weights; on a CPU anything above 0 takes torch's quadratic path.
    """

    hole_free = True

    def forward(self, q, k, v, mask=None):
        keys = None if mask is None else mask[:, None, None, :]
        return F.scaled_dot_product_attention(q, k, v, keys, dropout_p=self._dropout())

    def varlen(self, q, k, v, layout):
        return layout.attend(q, k, v, dropout_p=self._dropout())

    def _dropout(self) -> float:
        return self.sizes.dropout if self.training else 0.0
