"""Attention within each row of packed rows, see ``lra.varlen``.

Queries, or keys and values, are packed (1,H,T,·) or kept ones of each row (N,H,c,·).
"""

from collections.abc import Iterable
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..varlen import VarlenLayout
from .precision import writes_out

MULTIPLE = 64  # of the width of rows together, since products in 16 bits are compiled for each shape


def attend(q: Tensor, k: Tensor, v: Tensor, layout: VarlenLayout, *, dropout_p: float = 0.0) -> Tensor:
    """Compute softmax(q kᵀ / √D) v within each row by torch's fused call.

    Args:
        q, k, v: (1,H,T,·) or (N,H,c,·), k and v alike.
        layout: places of the rows.
        dropout_p: dropout rate of the weights.

    Returns:
        (1,H,T,E) or (N,H,c,E), as q.
    """
    rows = zip(*map(layout.rows, (q, k, v)), strict=True)
    out = [F.scaled_dot_product_attention(*(x[None] for x in row), dropout_p=dropout_p)[0] for row in rows]
    return layout.join(out) if layout.packs(q) else torch.stack(out)


def attend_thin(q: Tensor, k: Tensor, v: Tensor, layout: VarlenLayout) -> Tensor:
    """Compute ``attend`` without dropout for few queries or few keys of a row, as ``three_factor.attend_thin`` does."""
    if not writes_out(q):
        return attend(q, k, v, layout)
    factor = q.shape[-1] ** -0.5
    q, k = (q * factor, k) if k.numel() > q.numel() else (q, k * factor)
    return _WrittenOut.apply(q, k, v, layout)


class _WrittenOut(torch.autograd.Function):
    """softmax(q kᵀ) v within each row, eight rows of like lengths at a time.

    Products in 16 bits on a CPU take some microseconds each, and copy what is not contiguous.
    """

    @staticmethod
    def forward(ctx, q, k, v, layout):
        parts, saved = [], []
        for group, *given in zip(layout.groups, *(_together(x, layout) for x in (q, k, v)), strict=True):
            scores = given[0] @ given[1].mT
            if layout.packs(k):
                for row, i in zip(scores, group, strict=True):
                    row[..., layout.lengths[i] :] = float("-inf")
            weights = scores.softmax(-1)
            parts.append(weights @ given[2])
            saved += *given, weights
        ctx.layout, ctx.packed = layout, [layout.packs(x) for x in (q, k, v)]
        ctx.save_for_backward(*saved)
        return _apart(parts, layout.packs(q), layout)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        parts, saved = [], iter(ctx.saved_tensors)
        for g in _together(grad, ctx.layout):
            q, k, v, weights = (next(saved) for _ in range(4))
            dscores = torch._softmax_backward_data(g @ v.mT, weights, -1, weights.dtype)
            parts.append((dscores @ k, dscores.mT @ q, weights.mT @ g))
        grads = zip(zip(*parts, strict=True), ctx.packed, strict=True)
        return *(_apart(part, packed, ctx.layout) for part, packed in grads), None


def _together(x: Tensor, layout: VarlenLayout) -> list[Tensor]:
    """Copy the rows of each group of x, (1,H,T,D) or (N,H,c,D), to one tensor (g,H,·,D), with zeros behind each row."""
    if not layout.packs(x):
        return [x[group] for group in layout.groups]
    rows, out = layout.rows(x), []
    for group in layout.groups:
        width = -(-max(layout.lengths[i] for i in group) // MULTIPLE) * MULTIPLE
        out.append(x.new_zeros(len(group), x.shape[1], width, x.shape[3]))
        for place, i in zip(out[-1], group, strict=True):
            place[:, : layout.lengths[i]] = rows[i]
    return out


def _apart(parts: Iterable[Tensor], packed: bool, layout: VarlenLayout) -> Tensor:
    """Join groups of rows to (1,H,T,D) if ``packed``, otherwise (N,H,c,D): the inverse of ``_together``."""
    order = chain.from_iterable(layout.groups)
    rows = dict(zip(order, chain.from_iterable(parts), strict=True))
    if not packed:
        return torch.stack([rows[i] for i in range(len(rows))])
    return layout.join(rows[i][:, :length] for i, length in enumerate(layout.lengths))
