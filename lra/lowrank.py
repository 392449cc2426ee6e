"""The three-factor product that CUR and Nystromformer share: C · pinv(U) · (R v)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from . import kernels
from .linalg import at_least_float32

IMPLS = ("eager", "sdpa", "triton")


def three_factor(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_rows: Tensor,
    k_cols: Tensor,
    *,
    pinv: Callable[[Tensor], Tensor],
    mask: Tensor | None = None,
    row_mask: Tensor | None = None,
    col_mask: Tensor | None = None,
    impl: str = "sdpa",
) -> tuple[Tensor, Tensor | None]:
    """softmax(q k_colsᵀ) · pinv(softmax(q_rows k_colsᵀ)) · softmax(q_rows kᵀ) v, evaluated right to left.

    q, k (N,H,L,D), v (N,H,L,E), q_rows, k_cols (N,H,c,D), mask (N,L), row_mask and col_mask (N,H,c) or broadcastable:
    which kept rows and columns are real -> the product (N,H,L,E) and R v (N,H,c,E). Scores are divided by √D.

    Padded kept columns get no weight and padded kept rows of the inner matrix are zero before its inverse, so the
    result equals that of keeping the real ones only. Taking the inner matrix from q_rows instead of cutting it out of
    the n x c factor is the same number without a scatter in the backward pass.

    ``eager`` writes every factor out in float32; ``sdpa`` is two fused calls around the inverse, O(L) memory;
    ``triton`` is ``lra.kernels``, which takes the cubic inverse only and returns None for R v.
    """
    if impl == "triton":
        marks = {"q_kept": q_rows, "k_kept": k_cols, "row_mask": row_mask, "col_mask": col_mask}
        return kernels.three_factor(q, k, v, pinv=pinv, mask=mask, **marks), None
    with torch.autocast(q.device.type, enabled=False):
        rows, cols = at_least_float32(q_rows, k_cols)
        inner = _softmax(rows @ cols.mT * q.shape[-1] ** -0.5, col_mask)
        if row_mask is not None:
            inner = inner * row_mask[..., None]
        inverse = pinv(inner)  # (N,H,c,c)
    if impl == "sdpa":
        rv = F.scaled_dot_product_attention(q_rows, k, v, None if mask is None else mask[:, None, None])
        w = (inverse @ rv.to(inverse.dtype)).to(v.dtype)
        keys = None if col_mask is None else col_mask[:, :, None]
        return F.scaled_dot_product_attention(q, k_cols, w, keys), rv
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = at_least_float32(q, k, v)
        q = q * q.shape[-1] ** -0.5
        rv = _softmax(rows * rows.shape[-1] ** -0.5 @ k.mT, None if mask is None else mask[:, None]) @ v
        return _softmax(q @ cols.mT, col_mask) @ (inverse @ rv), rv


def _softmax(scores: Tensor, keys: Tensor | None) -> Tensor:
    """scores (N,H,i,j), keys (N,H,j): which columns are real."""
    if keys is not None:
        scores = scores.masked_fill(~keys[:, :, None], float("-inf"))
    return scores.softmax(-1)
