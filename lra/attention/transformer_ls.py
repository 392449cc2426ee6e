"""Long-short transformer, bidirectional (Transformer-LS; Zhu et al., NeurIPS 2021)."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..ops.attention_maps import ensure_nonempty
from ..ops.blocks import split_blocks, windows
from ..ops.convolution import convolve_sequence
from ..ops.precision import full_precision
from ..options import Positive, Whole
from .base import Mixer, Sizes, merge_heads, split_heads, zero_padding


class TransformerLS(Mixer):
    """One softmax over ``rank`` compressed keys (long-range) and a window of tokens (short-term, section 3).

        1. k, v = LN_1(x W_k), LN_1(x W_v)     one LayerNorm over all heads together
        2. P = softmax over the tokens of x W_p, the dynamic projection                    (N,H,L,rank)
        3. k', v' = LN_2(Pᵀ k), LN_2(Pᵀ v)     the second LayerNorm                        (N,H,rank,D)
        4. out_i = softmax(q_i [k', k_near]ᵀ / √D) [v', v_near],   near: the window of token i

    Windows: consecutive segments of ``window`` queries attend to their own tokens and to max(window // 2, 1) tokens on
    either side. Padding has no weight in the windows and in P. Step 4 gives zero for padded queries. W_p has no bias,
    because the softmax over tokens cancels a number that is added to all of them. O(L (rank + window) D) time. The
    released models of the benchmark have a class token in the last layer, whose key is one more compressed key; this
    layer has none. In plain torch: ``lra/reference/transformer_ls.py``.

    Args:
        sizes: its dropout acts on the weights.
        dim: d.
        rank: number of compressed keys.
        window: width of a segment.
        kernel: odd width of a depth-wise convolution of v that is added to the result, one filter per head, initially
            zero; 0 for none, as on LRA.

    Raises:
        ValueError: kernel is even.
    """

    has_dropout = True

    def __init__(self, sizes: Sizes, *, dim: int, rank: Positive = 32, window: Positive = 8, kernel: Whole = 0):
        super().__init__(sizes, dim=dim)
        if kernel and kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, or 0 for no convolution, not {kernel}")
        self.window = window
        self.reach = max(window // 2, 1)
        heads = sizes.heads
        width = heads * sizes.head_dim
        self.inputs = nn.Linear(dim, 3 * width)
        self.project = nn.Linear(dim, heads * rank, bias=False)
        # LN_1 and LN_2; the released code calls them dual_ln_l and dual_ln_s.
        self.token_norm = nn.LayerNorm(width)
        self.compressed_norm = nn.LayerNorm(width)
        # The module holds the filters; ``convolve_sequence`` applies them.
        self.conv: nn.Conv2d | None = None
        if kernel:
            self.conv = nn.Conv2d(heads, heads, (kernel, 1), groups=heads, bias=False)
            nn.init.zeros_(self.conv.weight)
        self.output = nn.Linear(width, dim)

    def forward(
        self,
        x: Float[Tensor, "N L d"],
        mask: Bool[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L d"]:
        N, L, _ = x.shape
        if mask is None:
            mask = x.new_ones(N, L, dtype=torch.bool)

        # 1. Projections and the first LayerNorm.
        heads = self.sizes.heads
        q, k, v = self.inputs(x).chunk(3, -1)
        q = split_heads(q, heads)  # (N,H,L,D)
        k = split_heads(self.token_norm(k), heads)  # (N,H,L,D)
        v = split_heads(self.token_norm(v), heads)  # (N,H,L,D)

        mixed = self._mix(x, q, k, v, mask)
        merged = merge_heads(mixed)  # (N,L,H D)
        return self.output(merged.to(x.dtype))

    @full_precision
    def _mix(
        self,
        x: Float[Tensor, "N L d"],
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L D"],
        mask: Bool[Tensor, "N L"],
    ) -> Float[Tensor, "N H L D"]:
        """Compute steps 2 to 4."""
        is_real = mask[:, None, :, None]  # (N,1,L,1)

        # 2. The dynamic projection, a softmax over the tokens.
        key_mask = ensure_nonempty(mask)
        assert key_mask is not None
        is_padding = ~key_mask[..., None]  # (N,L,1)
        logits = self.project(x).masked_fill(is_padding, float("-inf"))  # (N,L,H rank)
        P = split_heads(logits.softmax(1), self.sizes.heads)  # (N,H,L,rank)

        # 3. Compressed keys and values.
        k_long = self._compress(P, k)  # (N,H,rank,D)
        v_long = self._compress(P, v)  # (N,H,rank,D)

        # 4. One softmax over both kinds of keys.
        q = q * q.shape[-1] ** -0.5
        mixed = self._attend(q, k, v, k_long, v_long, mask)
        mixed = mixed.masked_fill(~is_real, 0.0)
        if self.conv is None:
            return mixed
        return mixed + convolve_sequence(zero_padding(v, mask), self.conv.weight)

    def _compress(
        self,
        P: Float[Tensor, "N H L rank"],
        x: Float[Tensor, "N H L D"],
    ) -> Float[Tensor, "N H rank D"]:
        """Compute LN_2(Pᵀ x)."""
        compressed = merge_heads(P.mT @ x)  # (N,rank,H D)
        normed = self.compressed_norm(compressed)
        return split_heads(normed, self.sizes.heads)

    def _attend(
        self,
        q: Float[Tensor, "N H L D"],
        k: Float[Tensor, "N H L D"],
        v: Float[Tensor, "N H L D"],
        k_long: Float[Tensor, "N H rank D"],
        v_long: Float[Tensor, "N H rank D"],
        mask: Bool[Tensor, "N L"],
    ) -> Float[Tensor, "N H L D"]:
        """Compute step 4 from scaled queries: S segments of w queries, windows of W = w + 2 reach keys."""
        L = q.shape[2]
        rank = k_long.shape[2]
        q_segments = split_blocks(q, self.window)  # (N,H,S,w,D)
        k_windows = windows(k, self.window, self.reach, self.reach)  # (N,H,S,W,D)
        v_windows = windows(v, self.window, self.reach, self.reach)  # (N,H,S,W,D)
        window_mask = windows(mask, self.window, self.reach, self.reach, 1)  # (N,S,W)
        is_masked = ~window_mask[:, None, :, None]  # (N,1,S,1,W)

        # Scores of both kinds of keys, and one softmax over them.
        long_scores = q_segments.flatten(2, 3) @ k_long.mT  # (N,H,S w,rank)
        long_scores = long_scores.unflatten(2, (-1, self.window))  # (N,H,S,w,rank)
        short_scores = q_segments @ k_windows.mT  # (N,H,S,w,W)
        short_scores = short_scores.masked_fill(is_masked, float("-inf"))
        weights = torch.cat([long_scores, short_scores], -1).softmax(-1)
        weights = F.dropout(weights, self.sizes.dropout, self.training)

        long_weights = weights[..., :rank].flatten(2, 3)  # (N,H,S w,rank)
        short_weights = weights[..., rank:]  # (N,H,S,w,W)
        long_part = long_weights @ v_long  # (N,H,S w,D)
        short_part = (short_weights @ v_windows).flatten(2, 3)  # (N,H,S w,D)
        return (long_part + short_part)[:, :, :L]
