"""Longformer attention (Beltagy et al. 2020)."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ..ops.blocks import attend_blocks, band_mask, hide_keys, split_blocks, windows
from ..options import Positive, Range, require_range
from .base import Attention, Sizes, as_attn_mask


class Longformer(Attention):
    """softmax(q kᵀ / √D) v over a band of w positions and g global tokens, O(L (w + g) D) time.

    Query i sees the positions i - floor((w - 1) / 2) .. i + floor(w / 2), itself included, and the global tokens, which
    are the first ones of the sequence. A global query sees every token. Section 3.1 has the band and global tokens. The
    paper and the released LRA code give global attention separate projections; here it shares the projections of the
    band. In plain torch: ``lra/reference/sparse.py``.

    Args:
        window: w.
        global_tokens: g, from 0 to ``length``.

    Raises:
        ValueError: ``global_tokens`` is outside 0 .. length.
    """

    def __init__(self, sizes: Sizes, *, window: Positive = 512, global_tokens: int = 0):
        super().__init__(sizes)
        require_range("global_tokens", global_tokens, Range(0, sizes.length), "length")
        self.window = window
        self.global_tokens = global_tokens

    def forward(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N H L E"]:
        num_global = min(self.global_tokens, q.shape[2])
        out = self._attend(q, k, v, mask, num_global)
        if not num_global:
            return out
        # Global queries see all tokens.
        global_queries = q[:, :, :num_global]
        attn_mask = as_attn_mask(mask)
        out_global = F.scaled_dot_product_attention(global_queries, k, v, attn_mask)  # (N,H,g,E)
        out_local = out[:, :, num_global:]
        return torch.cat([out_global, out_local], 2)

    def _attend(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None,
        num_global: int,
    ) -> Float[Tensor, "N H L E"]:
        """Attend to the band and to the global tokens."""
        L, D = q.shape[2:]
        E = v.shape[-1]
        num_left = min((self.window - 1) // 2, L)
        num_right = min(self.window // 2, L)
        # A key lies in about 1 + (num_left + num_right) / size windows: longer blocks copy it less often, shorter ones
        # compute fewer scores outside the band.
        size = max(self.window // 4, 16)
        size = min(size, L)

        # Keys of the bands: all real tokens but the global ones, which come in front of each block's keys (below).
        positions = torch.arange(L, device=q.device)[None]  # (1,L)
        is_local = positions >= num_global
        is_global_key = torch.ones_like(is_local[:, :num_global])  # (1,g)
        if mask is not None and _hides_keys(q, v):
            # The mask becomes an additional feature: 1 for queries, 0 for real keys, -1e30 for padded ones. So all
            # examples share one ``allowed``, the band, in torch's fused kernel.
            q, k, v = hide_keys(q, k, v, mask)
        elif mask is not None:
            is_local = is_local & mask  # (N,L)
            is_global_key = mask[:, :num_global]  # (N,g)

        # Queries in blocks, with the keys of their bands.
        queries = split_blocks(q, size)  # (N,H,B,b,D)
        keys = windows(k, size, num_left, num_right)  # (N,H,B,j,D)
        values = windows(v, size, num_left, num_right)  # (N,H,B,j,E)
        is_key = windows(is_local, size, num_left, num_right, 1)  # (N or 1,B,j)
        in_band = band_mask(size, num_left, num_right, q.device)  # (b,j)
        allowed = in_band & is_key[:, None, :, None]  # (N or 1,1,B,b,j)

        # The global tokens in front of each block's keys.
        if num_global:
            num_blocks = queries.shape[2]
            global_keys = k[:, :, None, :num_global]  # (N,H,1,g,D)
            global_values = v[:, :, None, :num_global]
            global_keys = global_keys.expand(-1, -1, num_blocks, -1, -1)
            global_values = global_values.expand(-1, -1, num_blocks, -1, -1)
            keys = torch.cat([global_keys, keys], 3)  # (N,H,B,g + j,D)
            values = torch.cat([global_values, values], 3)  # (N,H,B,g + j,E)
            is_global_key = is_global_key[:, None, None, None]
            is_global_key = is_global_key.expand(-1, -1, num_blocks, size, -1)  # (N or 1,1,B,b,g)
            allowed = torch.cat([is_global_key, allowed], -1)  # (N or 1,1,B,b,g + j)

        # ``hide_keys`` may have added a column, so the scale is computed from the head's size.
        out = attend_blocks(queries, keys, values, allowed, scale=D**-0.5)  # (N,H,B,b,E)
        out = out.flatten(2, 3)  # (N,H,B b,E)
        return out[:, :, :L, :E]


def _hides_keys(q: Float[Tensor, "N H L D"], v: Float[Tensor, "N H L E"]) -> bool:
    """Whether ``hide_keys`` replaces the mask: on a CPU, in float32 or float64, with values as wide as keys.

    On a GPU fused kernels need sizes that are multiples of 8, which an additional feature breaks.
    """
    has_one_width = q.shape[-1] == v.shape[-1]
    has_full_precision = q.dtype in (torch.float32, torch.float64)
    return q.device.type == "cpu" and has_one_width and has_full_precision
