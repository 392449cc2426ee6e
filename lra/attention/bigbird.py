"""BigBird attention, block-sparse form (Zaheer et al. 2020)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops.blocks import attend, blocks, gather_blocks, key_mask
from ..options import Positive, Whole
from .base import Attention, Sizes


class BigBird(Attention):
    """softmax(q kᵀ / √D) v over global, neighbouring and random blocks, O(L block (window + random) D) time.

    A query of block i sees the first and the last block, ``window`` blocks centred at i, and ``random`` other blocks,
    which are distinct from these if there are enough. Queries of the first and the last block see every token
    (section 2, ITC). The last block is the one with the example's last real token, whatever the padded length.

    Random blocks are drawn for each head. Training draws them for every call and example. Evaluation uses one fixed
    draw, an order of preference over all blocks of ``length``, of which an example takes the first ones that it has.

    Args:
        block: tokens of a block, b.
        window: neighbouring blocks including the block itself, odd.
        random: random blocks.

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
        num_blocks = -(-sizes.length // block)
        self.draw: Tensor
        self.register_buffer("draw", torch.rand(sizes.heads, num_blocks, num_blocks))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        num_examples, num_heads, seq_len, _ = q.shape
        device = q.device
        real = q.new_ones(num_examples, seq_len, dtype=torch.bool) if mask is None else mask
        # The last block with a real token.
        last_token = (real * torch.arange(seq_len, device=device)).amax(-1)
        last = last_token // self.block  # (N,)

        # Gather the m blocks that each block sees.
        q_blocks = blocks(q, self.block)  # (N,H,B,b,D)
        k_blocks = blocks(k, self.block)  # (N,H,B,b,D)
        v_blocks = blocks(v, self.block)  # (N,H,B,b,E)
        index, is_listed = self._choose(q_blocks, last)  # (N,H,B,m)
        keys = gather_blocks(k_blocks, index).flatten(3, 4)  # (N,H,B,m b,D)
        values = gather_blocks(v_blocks, index).flatten(3, 4)  # (N,H,B,m b,E)

        # Attend to their real tokens.
        example = torch.arange(num_examples, device=device)[:, None, None, None]
        is_real = blocks(real, self.block, 1)[example, index]  # (N,H,B,m,b)
        is_key = (is_real & is_listed[..., None]).flatten(3)  # (N,H,B,m b)
        allowed = is_key[:, :, :, None]  # (N,H,B,1,m b)
        out = attend(q_blocks, keys, values, allowed)  # (N,H,B,b,E)

        # Queries of the first and the last block see all tokens.
        ends = torch.stack([torch.zeros_like(last), last], -1)  # (N,2)
        ends = ends[:, None].expand(-1, num_heads, -1)  # (N,H,2)
        end_queries = gather_blocks(q_blocks, ends).flatten(2, 3)  # (N,H,2b,D)
        out_ends = F.scaled_dot_product_attention(end_queries, k, v, key_mask(mask))
        out_ends = out_ends.unflatten(2, (2, -1))  # (N,H,2,b,E)

        # They replace the outputs of these blocks.
        number = torch.arange(q_blocks.shape[2], device=device)[:, None, None]  # (B,1,1)
        is_first = number == 0
        is_last = number == last[:, None, None, None, None]  # (N,1,B,1,1)
        out = torch.where(is_first, out_ends[:, :, :1], out)
        out = torch.where(is_last, out_ends[:, :, 1:], out)
        return out.flatten(2, 3)[:, :, :seq_len]

    @torch.no_grad()
    def _choose(self, q_blocks: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """The blocks that each block sees, and which entries of that list count, both (N,H,B,m).

        An entry that repeats another one or lies outside the example does not count.
        """
        num_examples, num_heads, num_blocks = q_blocks.shape[:3]
        device = q_blocks.device
        block = torch.arange(num_blocks, device=device)
        last = last[:, None, None, None]
        reach = self.window // 2

        # Global blocks: the first and the last one.
        first_index = block.new_zeros(num_examples, num_heads, num_blocks, 1)
        last_index = last.expand(num_examples, num_heads, num_blocks, 1)

        # The window.
        distance = torch.arange(-reach, reach + 1, device=device)
        neighbours = block[:, None] + distance  # (B,window)
        neighbours = neighbours.expand(num_examples, num_heads, -1, -1)

        # Random blocks: the largest numbers of those not in the list yet.
        if self.training:
            draw = torch.rand(num_examples, num_heads, num_blocks, num_blocks, device=device)
        else:
            draw = self.draw[:, :num_blocks, :num_blocks].expand(num_examples, -1, -1, -1)
        is_near = (block - block[:, None]).abs() <= reach  # (B,B)
        is_excluded = is_near | (block == 0) | (block >= last)  # (N,1,B,B)
        num_random = min(self.random, num_blocks)
        random_blocks = draw.masked_fill(is_excluded, -1.0).topk(num_random, sorted=False)

        # All four lists, and which of their entries count.
        window = neighbours.clamp(0, num_blocks - 1)
        index = torch.cat([first_index, last_index, window, random_blocks.indices], -1)  # (N,H,B,m)
        is_listed = [
            torch.ones_like(first_index, dtype=torch.bool),
            last_index > 0,
            (neighbours > 0) & (neighbours < last),
            random_blocks.values >= 0,
        ]
        return index, torch.cat(is_listed, -1)
