"""The two thin products of packed rows as batches of tiles of equal size, for 16 bits on a CPU.

Every row begins at a multiple of ``layout.tile``, so a batch has one shape whatever the lengths of its rows; a product
for each row would make the library compile one for each length. B = T / tile tiles, each with the kept tokens of its
row beside it.
"""

import torch
from torch import Tensor

from ..varlen import VarlenLayout


def attend_from_kept(q: Tensor, k: Tensor, v: Tensor, layout: VarlenLayout) -> Tensor:
    """Compute softmax(q kᵀ / √D) v within each row: q (N,H,c,D), k, v (1,H,T,·) -> (N,H,c,E) in float32 at least."""
    scores = _scores(k, q, layout)  # (H,T,c)
    weights = _TokenSoftmax.apply(scores, layout)
    return _Total.apply(_tiles(weights, layout).mT @ _tiles(v[0], layout), layout)


def attend_to_kept(q: Tensor, k: Tensor, v: Tensor, layout: VarlenLayout) -> Tensor:
    """Compute softmax(q kᵀ / √D) v within each row: q (1,H,T,D), k, v (N,H,c,·) -> (1,H,T,E)."""
    weights = _scores(q, k, layout).softmax(-1)
    return (_tiles(weights, layout) @ _Spread.apply(v, layout)).view(1, *weights.shape[:2], -1)


def _scores(x: Tensor, kept: Tensor, layout: VarlenLayout) -> Tensor:
    """x keptᵀ / √D: x (1,H,T,D), kept (N,H,c,D) -> (H,T,c)."""
    kept = _Spread.apply(kept * x.shape[-1] ** -0.5, layout)
    return (_tiles(x[0], layout) @ kept.mT).view(*x.shape[1:3], -1)


def _tiles(x: Tensor, layout: VarlenLayout) -> Tensor:
    """(H,T,D) -> (H B,tile,D)."""
    return x.reshape(-1, layout.tile, x.shape[-1])


def _sums(tiles: Tensor, layout: VarlenLayout) -> Tensor:
    """Sum the tiles of each row in float32 at least: (H B,c,D) -> (N,H,c,D)."""
    wide = torch.promote_types(tiles.dtype, torch.float32)
    of_rows = tiles.unflatten(0, (-1, len(layout.row_of_tile))).split([w // layout.tile for w in layout.widths], 1)
    return torch.stack([part.sum(1, dtype=wide) for part in of_rows])


def _repeated(x: Tensor, layout: VarlenLayout) -> Tensor:
    """Repeat the kept tokens of a row for each of its tiles: (N,H,c,D) -> (H B,c,D)."""
    return x.transpose(0, 1).index_select(1, layout.row_of_tile).flatten(0, 1)


class _Spread(torch.autograd.Function):
    """``_repeated``, whose gradient is summed in float32."""

    @staticmethod
    def forward(ctx, x, layout):
        ctx.layout, ctx.dtype = layout, x.dtype
        return _repeated(x, layout)

    @staticmethod
    def backward(ctx, grad):
        return _sums(grad, ctx.layout).to(ctx.dtype), None


class _Total(torch.autograd.Function):
    """``_sums``, the adjoint of ``_Spread``."""

    @staticmethod
    def forward(ctx, tiles, layout):
        ctx.layout, ctx.dtype = layout, tiles.dtype
        return _sums(tiles, layout)

    @staticmethod
    def backward(ctx, grad):
        return _repeated(grad.to(ctx.dtype), ctx.layout), None


class _TokenSoftmax(torch.autograd.Function):
    """Softmax over the real tokens of each row, (H,T,c) -> (H,T,c) with zeros at the others.

    A row of one head fits into the cache, where its passes are faster than those over all rows.
    """

    @staticmethod
    def forward(ctx, scores, layout):
        weights = torch.empty_like(scores)
        for out, head in zip(weights, scores, strict=True):
            for start, length, width in layout.spans:
                out[start : start + length] = head[start : start + length].softmax(0)
                out[start + length : start + width] = 0
        ctx.save_for_backward(weights)
        ctx.layout = layout
        return weights

    @staticmethod
    def backward(ctx, grad):
        (weights,) = ctx.saved_tensors
        out = torch.empty_like(weights)
        for into, p, g in zip(out, weights, grad, strict=True):
            for start, _, width in ctx.layout.spans:
                row = slice(start, start + width)
                into[row] = torch._softmax_backward_data(g[row], p[row], 0, p.dtype)
        return out, None
