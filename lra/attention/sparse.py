"""Sparse Transformer attention (Child et al. 2019), both factorisations with their two sets of keys merged."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..ops.blocks import Part, attend_blocks, attend_part, band_mask, normalise_parts, split_blocks, windows
from ..ops.chunks import causal_mask
from ..ops.precision import full_precision
from ..options import Positive, Range, require_range
from .base import Attention, Sizes

Pattern = Literal["strided", "fixed"]


class Sparse(Attention):
    """One softmax over a local set of keys and a sparse set that spans the sequence (section 4.3, merged as in 5.1).

    ``strided``, with l = stride: query i sees a band of l positions, i - floor((l - 1) / 2) .. i + floor(l / 2), and
    every j = i (mod l).

    ``fixed``, with b = block and c = summary: query i sees its own block of b positions, and in every block the
    positions 0 and b - c .. b - 1: the paper's residues b - c, ..., b, where b counts as 0 as in the released LRA code.

    O(L (l + L / l) D) time for ``strided``, L√L D at l = √L; O(L (b + L c / b) D) time for ``fixed``, quadratic with a
    small constant for a fixed b. In plain torch: ``lra/reference/sparse.py``.

    Args:
        pattern: ``strided`` or ``fixed``.
        stride: l; None for the rounded √length.
        block: b.
        summary: c, from 1 to ``block``.
        causal: only keys at or before the query, as published; the strided band is then i - l + 1 .. i. The released
            LRA code is causal ``fixed`` with b = 50, c = 10, except for its class token, which sees and is seen by all.

    Raises:
        ValueError: ``summary`` is outside 1 .. block.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        pattern: Pattern = "strided",
        stride: Positive | None = None,
        block: Positive = 50,
        summary: int = 10,
        causal: bool = False,
    ):
        super().__init__(sizes)
        require_range("summary", summary, Range(1, block), "block")
        self.pattern = pattern
        self.stride = round(sizes.length**0.5) if stride is None else stride
        self.block = block
        self.summary = summary
        self.causal = causal

    def forward(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N H L E"]:
        real = mask
        if real is None:
            real = q.new_ones(1, q.shape[2], dtype=torch.bool)
        if self.pattern == "fixed":
            return self._fixed(q, k, v, real)
        return self._strided(q, k, v, real)

    @full_precision
    def _strided(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        real: Bool[Tensor, "#N L"],
    ) -> Float[Tensor, "N H L E"]:
        L, D = q.shape[2:]
        q = q * D**-0.5
        band = self._band(q, k, v, real)
        column = self._column(q, k, v, real)
        return normalise_parts([band, column])[:, :, :L]

    def _band(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        real: Bool[Tensor, "#N L"],
    ) -> Part:
        """Attend to the band. Tensors of the part are (N,H,B l,.)."""
        L = q.shape[2]
        # The band of a query: stride - 1 earlier keys if causal, else half of them on either side.
        if self.causal:
            num_left = self.stride - 1
            num_right = 0
        else:
            num_left = (self.stride - 1) // 2
            num_right = self.stride // 2
        num_left = min(num_left, L)
        num_right = min(num_right, L)

        # Split queries into blocks; each block sees its keys and the keys of the bands at both ends.
        size = min(self.stride, L)
        q_blocks = split_blocks(q, size)  # (N,H,B,l,D)
        k_windows = windows(k, size, num_left, num_right)  # (N,H,B,window,D)
        v_windows = windows(v, size, num_left, num_right)  # (N,H,B,window,E)

        in_band = band_mask(size, num_left, num_right, q.device)  # (l,window)
        is_real = windows(real, size, num_left, num_right, 1)  # (N or 1,B,window)
        allowed = in_band & is_real[:, None, :, None]  # (N or 1,1,B,l,window)

        scores = q_blocks @ k_windows.mT  # (N,H,B,l,window)
        part = attend_part(scores, v_windows, allowed)
        flat_part = [x.flatten(2, 3) for x in part]
        return Part(*flat_part)

    def _column(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        real: Bool[Tensor, "#N L"],
    ) -> Part:
        """Attend to keys at distances l, 2 l, ...; distance 0 is in the band. Tensors of the part are (N,H,B l,.)."""
        size = min(self.stride, q.shape[2])
        # The positions i (mod l) are the columns of the folded sequence.
        q, k, v = (split_blocks(x, size).transpose(2, 3) for x in (q, k, v))  # (N,H,l,B,.)
        is_other = self._other_blocks(q.shape[3], q.device)  # (B,B)
        is_real = split_blocks(real, size, 1).mT  # (N or 1,l,B)
        allowed = is_other & is_real[:, None, :, None]  # (N or 1,1,l,B,B)
        scores = q @ k.mT  # (N,H,l,B,B)
        part = attend_part(scores, v, allowed)
        flat_part = [x.transpose(2, 3).flatten(2, 3) for x in part]
        return Part(*flat_part)

    def _fixed(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        real: Bool[Tensor, "#N L"],
    ) -> Float[Tensor, "N H L E"]:
        L = q.shape[2]
        block = self.block
        q, k, v = (split_blocks(x, block) for x in (q, k, v))  # (N,H,B,b,.)
        real = split_blocks(real, block, 1)  # (N or 1,B,b)

        # Summaries of a block: its first position and its last c ones, which are all positions if c = b.
        position = torch.arange(block, device=q.device)
        first_of_last = block - self.summary
        first = position[:1] if first_of_last > 0 else position[:0]
        last = position[first_of_last:]
        summaries = torch.cat([first, last])  # (s,), s = c + 1, or c if c = b

        # Keys of the query's block.
        allowed_inside = real[:, None, :, None]  # (N or 1,1,B,1,b)
        if self.causal:
            is_seen = causal_mask(block, q.device)  # (b,b)
            allowed_inside = allowed_inside & is_seen  # (N or 1,1,B,b,b)

        # Summaries of the other blocks, only of earlier ones if causal; S of all blocks together.
        is_other = self._other_blocks(q.shape[2], q.device)  # (B,B)
        real_summaries = real[..., summaries]  # (N or 1,B,s)
        allowed_outside = is_other[..., None] & real_summaries[:, None]  # (N or 1,B,B,s)
        allowed_outside = allowed_outside.flatten(2)[:, None, :, None]  # (N or 1,1,B,1,S)
        allowed_outside = allowed_outside.expand(-1, -1, -1, allowed_inside.shape[3], -1)  # (N or 1,1,B,1 or b,S)

        keys = _append_summaries(k, summaries)
        values = _append_summaries(v, summaries)
        allowed = torch.cat([allowed_inside, allowed_outside], -1)
        # ``attend_blocks`` scales the scores by 1 / √D.
        out = attend_blocks(q, keys, values, allowed)  # (N,H,B,b,E)
        return out.flatten(2, 3)[:, :, :L]

    def _other_blocks(self, num_blocks: int, device: torch.device) -> Bool[Tensor, "B B"]:
        """Mark the blocks other than the query's block; only earlier ones if causal."""
        number = torch.arange(num_blocks, device=device)
        if self.causal:
            return number < number[:, None]
        return number != number[:, None]


def _append_summaries(
    x: Float[Tensor, "N H B b D"],
    summaries: Int[Tensor, " s"],
) -> Float[Tensor, "N H B b+B*s D"]:
    """Append the summaries of all blocks to each block."""
    num_blocks = x.shape[2]
    shared = x[:, :, :, summaries].flatten(2, 3)  # (N,H,S,D)
    shared = shared[:, :, None].expand(-1, -1, num_blocks, -1, -1)  # (N,H,B,S,D)
    return torch.cat([x, shared], 3)
