"""The three-factor product that CUR and Nystromformer share: C · pinv(U) · (R v)."""

from collections.abc import Callable
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from . import triton as kernels
from .pinv import at_least_float32
from .scores import scale, weigh
from .varlen import VarlenLayout

Impl = Literal["eager", "sdpa", "triton"]
IMPLS = get_args(Impl)


def three_factor(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_rows: Tensor,
    k_cols: Tensor,
    *,
    pinv: Callable[[Tensor], Tensor],
    mask: Tensor | VarlenLayout | None = None,
    row_mask: Tensor | None = None,
    col_mask: Tensor | None = None,
    weights: str = "softmax",
    bias: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None),
    impl: Impl = "sdpa",
) -> tuple[Tensor, Tensor | None]:
    """f(q k_colsᵀ) · pinv(f(q_rows k_colsᵀ)) · f(q_rows kᵀ) v, evaluated right to left, f the softmax.

    q, k (N,H,L,D), v (N,H,L,E), q_rows, k_cols (N,H,c,D), mask (N,L), row_mask and col_mask (N,H,c) or broadcastable:
    which kept rows and columns are real -> the product (N,H,L,E) and R v (N,H,c,E). Scores are divided by √D.

    weights: ``softmax`` | ``laplace``, which makes f and the divisor MEGA's, see ``lra.ops.scores``. bias: added to the
    scores of the three factors, (N,H,L,c), (N,H,c,c) and (N,H,c,L) or broadcastable.

    Padded kept columns get no weight and padded kept rows of the inner matrix are zero before its inverse, so the
    result equals that of keeping the real ones only. Taking the inner matrix from q_rows instead of cutting it out of
    the n x c factor is the same number without a scatter in the backward pass.

    ``eager`` writes every factor out in float32; ``sdpa`` is two fused calls around the inverse, O(L) memory without a
    bias, and for softmax only; ``triton`` is ``lra.ops.triton``, for softmax without a bias and the cubic inverse only,
    and returns None for R v. With ``VarlenLayout`` as the mask q, k, v are packed (1,H,T,·) and impl is ``sdpa``.
    """
    if impl == "triton":
        marks = {"q_kept": q_rows, "k_kept": k_cols, "row_mask": row_mask, "col_mask": col_mask}
        return kernels.three_factor(q, k, v, pinv=pinv, mask=mask, **marks), None
    outer_bias, inner_bias, rows_bias = bias
    factor = scale(weights, q, mask)
    with torch.autocast(q.device.type, enabled=False):
        rows, cols = at_least_float32(q_rows, k_cols)
        inner = weigh(rows * factor @ cols.mT, col_mask, weights, inner_bias)
        if row_mask is not None:
            inner = inner * row_mask[..., None]
        inverse = pinv(inner)  # (N,H,c,c)
    if isinstance(mask, VarlenLayout):
        rv = mask.attend(q_rows, k, v)
        return mask.attend(q, k_cols, (inverse @ rv.to(inverse.dtype)).to(v.dtype)), rv
    if impl == "sdpa":
        rv = F.scaled_dot_product_attention(q_rows, k, v, _allowed(mask if mask is None else mask[:, None], rows_bias))
        w = (inverse @ rv.to(inverse.dtype)).to(v.dtype)
        return F.scaled_dot_product_attention(q, k_cols, w, _allowed(col_mask, outer_bias)), rv
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = at_least_float32(q, k, v)
        rv = weigh(rows * factor @ k.mT, None if mask is None else mask[:, None], weights, rows_bias) @ v
        return weigh(q * factor @ cols.mT, col_mask, weights, outer_bias) @ (inverse @ rv), rv


def _allowed(keys: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """Which keys are real, (N,H,j) or broadcastable, and the bias (N,H,i,j), as one attn_mask."""
    if keys is None:
        return bias
    return keys[:, :, None] if bias is None else bias.masked_fill(~keys[:, :, None], float("-inf"))
