"""Longformer attention (Beltagy et al. 2020)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops.blocks import attend, blocks, hide_keys, key_mask, windows
from ..options import Positive, Range, in_range
from .base import Attention, Sizes


class Longformer(Attention):
    """softmax(q kᵀ / √D) v over a band of ``window`` positions and ``global_tokens``, O(L window D) time.

    Query i sees the positions i - floor((w - 1) / 2) .. i + floor(w / 2), itself included, and the global tokens, which
    are the first ones of the sequence. A global query sees every token (both section 3.1). The paper gives global
    attention separate projections; here, as in the released LRA code, it shares the projections of the band.

    Args:
        window: width of the band w.
        global_tokens: number of global tokens, from 0 to ``length``.

    Raises:
        ValueError: ``global_tokens`` is outside 0 .. length.
    """

    def __init__(self, sizes: Sizes, *, window: Positive = 512, global_tokens: int = 0):
        super().__init__(sizes)
        in_range("global_tokens", global_tokens, Range(0, sizes.length), "length")
        self.window = window
        self.global_tokens = global_tokens

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        num_global = min(self.global_tokens, q.shape[2])
        out = self._band(q, k, v, mask, num_global)
        if not num_global:
            return out
        # Global queries see all tokens.
        out_global = F.scaled_dot_product_attention(q[:, :, :num_global], k, v, key_mask(mask))
        return torch.cat([out_global, out[:, :, num_global:]], 2)

    def _band(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, num_global: int) -> Tensor:
        """Attend to the band and to the global tokens."""
        seq_len, head_dim = q.shape[2:]
        value_dim = v.shape[-1]
        num_left = min((self.window - 1) // 2, seq_len)
        num_right = min(self.window // 2, seq_len)
        # Longer blocks gather fewer keys twice, shorter ones compute fewer scores outside the band.
        size = min(max(self.window // 4, 16), seq_len)

        # Band of each query of a block; offset = key position - first key of the query's band.
        num_keys = num_left + size + num_right
        key = torch.arange(num_keys, device=q.device)
        query = torch.arange(size, device=q.device)[:, None]
        offset = key - query
        in_band = (offset >= 0) & (offset <= num_left + num_right)  # (b,j)

        # Keys in the sequence, without the global tokens, which are listed separately.
        is_local = torch.arange(seq_len, device=q.device)[None] >= num_global  # (1,L)
        seen_global = torch.ones_like(is_local[:, :num_global])  # (1,g)
        if mask is not None and _hides_keys(q, v):
            q, k, v = hide_keys(q, k, v, mask)
        elif mask is not None:
            is_local = is_local & mask  # (N,L)
            seen_global = mask[:, :num_global]  # (N,g)
        is_key = windows(is_local, size, num_left, num_right, 1)  # (N or 1,B,j)
        allowed = in_band & is_key[:, None, :, None]  # (N or 1,1,B,b,j)

        # Queries in blocks, with the keys of their bands.
        queries = blocks(q, size)  # (N,H,B,b,D)
        keys = windows(k, size, num_left, num_right)  # (N,H,B,j,D)
        values = windows(v, size, num_left, num_right)  # (N,H,B,j,E)

        # The global tokens in front of each block's keys.
        if num_global:
            num_blocks = queries.shape[2]
            global_keys = k[:, :, None, :num_global].expand(-1, -1, num_blocks, -1, -1)
            global_values = v[:, :, None, :num_global].expand(-1, -1, num_blocks, -1, -1)
            keys = torch.cat([global_keys, keys], 3)  # (N,H,B,g + j,D)
            values = torch.cat([global_values, values], 3)  # (N,H,B,g + j,E)
            seen_global = seen_global[:, None, None, None]
            seen_global = seen_global.expand(-1, -1, num_blocks, size, -1)  # (N or 1,1,B,b,g)
            allowed = torch.cat([seen_global, allowed], -1)  # (N or 1,1,B,b,g + j)

        # ``hide_keys`` may have added a column, so the scale is computed from the head's size.
        out = attend(queries, keys, values, allowed, scale=head_dim**-0.5)  # (N,H,B,b,E)
        return out.flatten(2, 3)[:, :, :seq_len, :value_dim]


def _hides_keys(q: Tensor, v: Tensor) -> bool:
    """Whether the mask is a column of the keys: on a CPU. On a GPU fused kernels need sizes that are multiples of 8."""
    has_one_width = q.shape[-1] == v.shape[-1]
    is_wide = q.dtype in (torch.float32, torch.float64)
    return q.device.type == "cpu" and has_one_width and is_wide
