"""Linformer (Wang et al. 2020, arXiv 2006.04768).

``lra/reference/linformer.py`` has the same equation for one head of one sequence.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..options import Positive
from .base import Attention, Sizes, zero_padding


class Linformer(Attention):
    """softmax(q (E k)ᵀ / √D) (F v) with learned matrices E and F that compress L keys and values to ``rank`` (eq. 7).

    Column j of E and F belongs to position j, so a sequence shorter than ``length`` uses the first L columns. Padding
    is zero before it is compressed. O(L rank) time per channel of the keys or values.

    Args:
        sizes: its dropout acts on the weights.
        rank: number of compressed keys; it may exceed the number of tokens.
        share_heads: whether all heads share E and F.
        share_kv: whether F = E. The paper's sharing (section 4) is share_heads=true share_kv=false (headwise) or both
            true (key-value); Nystromformer's code has share_heads=false share_kv=true. Layers share nothing here; the
            paper's third form (layerwise) and Nystromformer's code have one E for all layers.
    """

    has_dropout = True

    def __init__(self, sizes: Sizes, *, rank: Positive = 256, share_heads: bool = False, share_kv: bool = True):
        super().__init__(sizes)
        num_maps = 1 if share_heads else sizes.heads
        shape = (num_maps, rank, sizes.length)
        self.compress_k = nn.Parameter(torch.empty(shape).normal_(std=0.02))
        # None: F = E.
        self.compress_v = None if share_kv else nn.Parameter(torch.empty(shape).normal_(std=0.02))

    def forward(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N H L E"]:
        k = zero_padding(k, mask)
        v = zero_padding(v, mask)

        # Eq. 7: E k and F v, then attention to them.
        compress_v = self.compress_k if self.compress_v is None else self.compress_v
        k = compress(self.compress_k, k)  # (N,H,rank,D)
        v = compress(compress_v, v)  # (N,H,rank,E)
        dropout_p = self.sizes.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p)


def compress(
    matrix: Float[Tensor, "#H rank length"],
    x: Float[Tensor, "N H L D"],
) -> Float[Tensor, "N H rank D"]:
    """Compute matrix[..., :L] x; unlike einsum, matmul would copy the matrix for every example."""
    L = x.shape[2]
    return torch.einsum("hrl,nhld->nhrd", matrix[..., :L], x)
