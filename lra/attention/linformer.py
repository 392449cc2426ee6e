"""Linformer (Wang et al. 2020)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.kernel_features import zero_padding
from ..options import Positive
from .base import Attention, Sizes


class Linformer(Attention):
    """softmax(q (E k)ᵀ / √D) (F v): L keys and values compressed to ``rank`` by learned maps E and F (equation 7).

    Position j of a row is compressed by column j of E and F (H,rank,length), normal with standard deviation 0.02, so a
    row shorter than ``length`` uses their first L columns, and padding is zero before it is compressed. rank may exceed
    the number of tokens. The paper's sharing (section 4): none is share_heads=false share_kv=false, headwise true
    false, key-value true true; the PyTorch LRA code has false true. dropout acts on the weights.

    O(L rank (D + E)) time.
    """

    drops = True

    def __init__(self, sizes: Sizes, *, rank: Positive = 256, share_heads: bool = False, share_kv: bool = True):
        super().__init__(sizes)
        shape = (1 if share_heads else sizes.heads, rank, sizes.length)
        self.compress_k = nn.Parameter(torch.empty(shape).normal_(std=0.02))
        self.compress_v = None if share_kv else nn.Parameter(torch.empty(shape).normal_(std=0.02))

    def forward(self, q, k, v, mask=None):
        k, v = zero_padding(k, mask), zero_padding(v, mask)
        k = compress(self.compress_k, k)  # (N,H,rank,D)
        v = compress(self.compress_k if self.compress_v is None else self.compress_v, v)  # (N,H,rank,E)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=self.sizes.dropout if self.training else 0.0)


def compress(e: Tensor, x: Tensor) -> Tensor:
    """e (H or 1,r,length), x (N,H,L,D) -> e[..., :L] x (N,H,r,D); a matmul would copy e for every example."""
    return torch.einsum("hrl,nhld->nhrd", e[..., : x.shape[2]], x)
