"""BigBird attention, block-sparse form (Zaheer et al. 2020)."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..ops.blocks import attend_blocks, gather_blocks, split_blocks
from ..options import Positive, Whole
from .base import Attention, Sizes, as_attn_mask


class BigBird(Attention):
    """softmax(q kᵀ / √D) v over global, near and random blocks, O(L block (window + random) D + (L / block)²) time.

    A query of block i sees the first and the last block, ``window`` blocks centred at i, and ``random`` of the other
    blocks, or all of them if there are fewer. Queries of the first and the last block see every token (section 2, ITC).
    The first block is the first one of the sequence, although it may have no real token; the last block is the one with
    the example's last real token, whatever the padded length.

    Random blocks are drawn separately for each head. Training draws them at every call, for each example. Evaluation
    uses one fixed draw, which ranks all blocks of ``length`` for each head and query block; an example takes the
    highest-ranked blocks that it has. Drawing one random number for each pair of blocks is the second term of the time.
    In plain torch: ``lra/reference/sparse.py``.

    Args:
        block: tokens of a block, b.
        window: neighbouring blocks including the block itself, odd.
        random: maximum number of random blocks that a query block sees.

    Raises:
        ValueError: ``window`` is even.
    """

    def __init__(self, sizes: Sizes, *, block: Positive = 64, window: Positive = 3, random: Whole = 3):
        super().__init__(sizes)
        if window % 2 == 0:
            raise ValueError(f"window must be odd, in blocks, not {window}")
        self.block = block
        self.window = window
        self.random = random
        # Random numbers for evaluation, one per head and pair of blocks.
        num_blocks = math.ceil(sizes.length / block)
        draw = torch.rand(sizes.heads, num_blocks, num_blocks)
        self.draw: Tensor
        self.register_buffer("draw", draw)

    def forward(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N H L E"]:
        N, _, L, _ = q.shape
        real = mask
        if real is None:
            real = q.new_ones(N, L, dtype=torch.bool)
        # The last block with a real token.
        positions = torch.arange(L, device=q.device)
        last_token = (real * positions).amax(-1)
        last = last_token // self.block  # (N,)

        # Each block attends to the real tokens of m = 2 + window + random listed blocks: the first, the last, its
        # window and random ones. Repeated entries do not count.
        q_blocks = split_blocks(q, self.block)  # (N,H,B,b,D)
        k_blocks = split_blocks(k, self.block)  # (N,H,B,b,D)
        v_blocks = split_blocks(v, self.block)  # (N,H,B,b,E)
        index, is_counted = self._list_blocks(q_blocks, last)  # (N,H,B,m)
        keys = gather_blocks(k_blocks, index)  # (N,H,B,m,b,D)
        values = gather_blocks(v_blocks, index)  # (N,H,B,m,b,E)
        is_key = self._real_keys(real, index) & is_counted[..., None]  # (N,H,B,m,b)
        allowed = is_key.flatten(3)[:, :, :, None]  # (N,H,B,1,m b)
        out = attend_blocks(q_blocks, keys.flatten(3, 4), values.flatten(3, 4), allowed)  # (N,H,B,b,E)

        # The outputs of the first and the last block are replaced: their queries see all tokens.
        out_ends = self._attend_from_ends(q_blocks, k, v, mask, last)  # (N,H,2,b,E)
        out_first = out_ends[:, :, :1]
        out_last = out_ends[:, :, 1:]
        block = torch.arange(q_blocks.shape[2], device=q.device)
        block = block[:, None, None]  # (B,1,1)
        is_first = block == 0
        is_last = block == last[:, None, None, None, None]  # (N,1,B,1,1)
        out = torch.where(is_first, out_first, out)
        out = torch.where(is_last, out_last, out)
        out = out.flatten(2, 3)  # (N,H,B b,E)
        return out[:, :, :L]

    def _real_keys(
        self,
        real: Bool[Tensor, "N L"],
        index: Int[Tensor, "N H B m"],
    ) -> Bool[Tensor, "N H B m b"]:
        """Mark the real tokens of the blocks at ``index``."""
        real_blocks = split_blocks(real, self.block, 1)  # (N,B,b)
        example = torch.arange(len(real), device=real.device)
        return real_blocks[example[:, None, None, None], index]

    def _attend_from_ends(
        self,
        q_blocks: Float[Tensor, "N H B b D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L E"],
        mask: Bool[Tensor, "N L"] | None,
        last: Int[Tensor, " N"],
    ) -> Float[Tensor, "N H 2 b E"]:
        """Attend from the first and the last block to all tokens."""
        num_heads = k.shape[1]
        ends = torch.stack([torch.zeros_like(last), last], -1)  # (N,2)
        ends = ends[:, None].expand(-1, num_heads, -1)  # (N,H,2)
        end_queries = gather_blocks(q_blocks, ends)  # (N,H,2,b,D)
        end_queries = end_queries.flatten(2, 3)  # (N,H,2 b,D)
        attn_mask = as_attn_mask(mask)
        out = F.scaled_dot_product_attention(end_queries, k, v, attn_mask)
        return out.unflatten(2, (2, -1))

    @torch.no_grad()
    def _list_blocks(
        self,
        q_blocks: Float[Tensor, "N H B b D"],
        last: Int[Tensor, " N"],
    ) -> tuple[Int[Tensor, "N H B m"], Bool[Tensor, "N H B m"]]:
        """List the blocks that each block sees, and mark the entries of the list that count.

        An entry that repeats another one or lies outside the example does not count.
        """
        N, H, B = q_blocks.shape[:3]
        device = q_blocks.device
        block = torch.arange(B, device=device)
        last = last[:, None, None, None]  # (N,1,1,1)
        reach = self.window // 2

        # Global blocks: the first and the last one.
        first_index = block.new_zeros(N, H, B, 1)
        last_index = last.expand(N, H, B, 1)
        is_first_counted = torch.ones_like(first_index, dtype=torch.bool)
        is_last_counted = last_index > 0

        # The window.
        distance = torch.arange(-reach, reach + 1, device=device)
        neighbours = block[:, None] + distance  # (B,window)
        neighbours = neighbours.expand(N, H, -1, -1)
        is_window_counted = (neighbours > 0) & (neighbours < last)
        window_index = neighbours.clamp(0, B - 1)

        # Random blocks: the largest random numbers of the blocks that are not in the list yet.
        draw = self.draw[:, :B, :B].expand(N, -1, -1, -1)
        if self.training:
            draw = torch.rand(N, H, B, B, device=device)
        is_near = (block - block[:, None]).abs() <= reach  # (B,B)
        is_global_or_outside = (block == 0) | (block >= last)  # (N,1,1,B)
        # Random numbers are at least 0; -1 marks blocks that are listed already or lie outside the example.
        draw = draw.masked_fill(is_near | is_global_or_outside, -1.0)
        num_random = min(self.random, B)
        largest, random_index = draw.topk(num_random, sorted=False)  # (N,H,B,random)
        is_random_counted = largest >= 0

        # All four lists, m = 2 + window + random entries.
        index = torch.cat([first_index, last_index, window_index, random_index], -1)
        is_counted = torch.cat([is_first_counted, is_last_counted, is_window_counted, is_random_counted], -1)
        return index, is_counted
