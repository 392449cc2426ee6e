"""The three-factor product that CUR and Nystromformer share: C · pinv(U) · (R v)."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..varlen import VarlenLayout
from . import packed
from . import triton as kernels
from .pinv import unbounded
from .precision import full_precision, writes_out
from .scores import Weights, allowed, attend_written_out, scale, weigh
from .solve import solve

Impl = Literal["eager", "sdpa", "triton", "triton_rounded"]
Inverse = Callable[[Tensor], Tensor]  # (..., c, c) -> (..., c, c)
NO_BIAS = (None, None, None)


def three_factor(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_rows: Tensor,
    k_cols: Tensor,
    *,
    pinv: Inverse,
    mask: Tensor | None = None,
    row_mask: Tensor | None = None,
    col_mask: Tensor | None = None,
    weights: Weights = "softmax",
    bias: tuple[Tensor | None, Tensor | None, Tensor | None] = NO_BIAS,
    layout: VarlenLayout | None = None,
    impl: Impl = "sdpa",
) -> tuple[Tensor, Tensor | None]:
    """Multiply f(q k_colsᵀ) · pinv(f(q_rows k_colsᵀ)) · f(q_rows kᵀ) v from right to left, f the softmax.

    Scores are divided by √D. Padded kept columns get no weight and padded kept rows of the inner matrix are zero before
    its inverse, so the result equals that of keeping the real ones only. The inner matrix is computed from q_rows; this
    equals gathering it from the n x c factor, without a scatter in the backward pass.

    Args:
        q, k: (N,H,L,D). v: (N,H,L,E). q_rows, k_cols: (N,H,c,D).
        mask: (N,L). row_mask, col_mask: real kept rows and columns, (N,H,c) or broadcastable.
        weights: ``softmax`` | ``laplace``, f and divisor of MEGA, see ``lra.ops.scores``.
        bias: added to the scores of the three factors, (N,H,L,c), (N,H,c,c) and (N,H,c,L) or broadcastable.
        layout: places of packed rows q, k, v (1,H,T,·), without padded kept ones; with impl ``sdpa``.
        impl: ``eager`` writes every factor out in float32; ``sdpa`` is two fused calls around the inverse, O(L) memory
            without a bias, and for softmax only, or their products in 16 bits on a CPU, see ``attend_thin``; ``triton``
            is ``lra.ops.triton``, for softmax without a bias and the cubic inverse only, and returns None for R v;
            ``triton_rounded`` is that with fewer products and larger errors for 16-bit inputs.

    Returns:
        The product (N,H,L,E), packed (1,H,T,E), and R v (N,H,c,E).
    """
    marks = {"mask": mask, "row_mask": row_mask, "col_mask": col_mask}
    if impl in kernels.IMPLS:
        return kernels.three_factor(q, k, v, pinv=pinv, q_kept=q_rows, k_kept=k_cols, **marks, impl=impl), None
    factor = scale(weights, q, mask)
    inner = _inner(q_rows, k_cols, factor, row_mask, col_mask, weights, bias[1])
    attend, product = attend_thin, _product
    if impl == "eager":
        attend, product = partial(attend_written_out, factor=factor, weights=weights), full_precision(_product)
    elif layout is not None:
        attend = lambda q, k, v, keys, bias: packed.attend_thin(q, k, v, layout)
        product = torch.autocast(q.device.type, enabled=False)(_product)
    elif v.dtype == torch.float16 and unbounded(pinv):  # U⁺ R v leaves its range, the result does not
        product = full_precision(_product)
    keys = None if mask is None else mask[:, None]
    out, rv = product(q, k, v, q_rows, k_cols, partial(solve, pinv, inner), attend, keys, col_mask, bias)
    return (out if impl == "eager" else out.to(v.dtype)), rv


def _product(q, k, v, q_rows, k_cols, inverted, attend, keys, col_mask, bias):
    rv = attend(q_rows, k, v, keys, bias[2])
    return attend(q, k_cols, inverted(rv).to(v.dtype), col_mask, bias[0]), rv


def attend_thin(q: Tensor, k: Tensor, v: Tensor, keys: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """Compute softmax(q kᵀ / √D) v if there are few queries or few keys, by torch's fused call.

    In bfloat16 on a CPU the map is written out instead, O(i j) memory, because the backward pass of the fused call is
    slow there (``writes_out``). Sums are in float32; scores and weights are rounded.

    Args:
        q: (N,H,i,D).
        k: (N,H,j,D).
        v: (N,H,j,E).
        keys: real keys (N,H,j) or broadcastable, None if all are.
        bias: added to the scores.

    Returns:
        (N,H,i,E).
    """
    if not writes_out(q):
        return F.scaled_dot_product_attention(q, k, v, allowed(keys, bias))
    factor = q.shape[-1] ** -0.5  # of the fewer of q and k
    with torch.autocast("cpu", enabled=False):  # or the softmax would be one of float32
        scores = q * factor @ k.mT if q.shape[2] < k.shape[2] else q @ (k * factor).mT
        return weigh(scores, keys, "softmax", bias) @ v


@full_precision
def _inner(rows, cols, factor, row_mask, col_mask, weights, bias) -> Tensor:
    """Compute U (N,H,c,c), the kept rows of the first factor."""
    inner = weigh(rows * factor @ cols.mT, col_mask, weights, bias)
    return inner if row_mask is None else inner * row_mask[..., None]
