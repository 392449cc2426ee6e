"""Softmax attention by torch's fused kernels: the baseline that an efficient mechanism has to beat."""

from typing import TYPE_CHECKING

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ..ops import varlen_attention
from ..ops.chunks import causal_mask
from .base import Attention, Sizes, as_attn_mask

if TYPE_CHECKING:
    from ..varlen import VarlenLayout


class SDPA(Attention):
    """softmax(q kᵀ / √D) v by torch's fused kernels, O(L² (D + E)) time and O(L) memory, in the dtype of its inputs.

    Four cases take O(L²) memory: ``causal`` with a mask; on a CPU, dropout in training or values that are not as wide
    as keys (``block=mega``); on a GPU with a mask, a head size that is no multiple of 8 (float32: 4). In plain torch:
    ``lra/reference/softmax.py``.

    Args:
        sizes: its dropout acts on the weights.
        causal: whether a query attends only to keys up to its own position.
    """

    has_dropout = True
    compactable = True

    def __init__(self, sizes: Sizes, *, causal: bool = False):
        super().__init__(sizes)
        self.causal = causal

    def forward(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N H L E"]:
        dropout_p = self._dropout()
        attn_mask = as_attn_mask(mask)  # (N,1,1,L)
        if attn_mask is None:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=self.causal)
        if self.causal:
            # A padded query attends to itself too: it may have no real key at or before it.
            lower = causal_mask(q.shape[2], q.device)  # (L,L)
            diagonal = lower & lower.mT
            attn_mask = (attn_mask & lower) | diagonal  # (N,1,L,L)
        return F.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p=dropout_p)

    def varlen(
        self,
        q: Float[Tensor, "1 H T D"],
        k: Float[Tensor, "1 H T D"],
        v: Float[Tensor, "1 H T E"],
        layout: "VarlenLayout",
    ) -> Float[Tensor, "1 H T E"]:
        if self.causal:
            return super().varlen(q, k, v, layout)
        return varlen_attention.attend_packed(q, k, v, layout, dropout_p=self._dropout())

    def _dropout(self) -> float:
        return self.sizes.dropout if self.training else 0.0
