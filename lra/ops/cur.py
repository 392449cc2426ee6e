"""CUR attention as functions, computed fast (CURformer: Francois et al., Machine Learning 114:139, 2025).

``lra.ops.cur_naive`` is the formula and the meaning of the options.
"""

import operator
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from ..options import one_of
from ..varlen import VarlenLayout, gather_packed, put_packed
from . import cells
from . import triton as kernels
from .cur_naive import CUROptions, Pairing, Score
from .pinv import cubic, exact
from .selection import gather_kept, no_row_empty, put_kept, select
from .three_factor import NO_BIAS, Impl, three_factor

Bias = Callable[[Tensor, Tensor], Tensor]  # positions of rows (..., i) and columns (..., j) -> (..., i, j)
Columns = Literal["kept", "cells"]


def cur(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    options: CUROptions,
    *,
    layout: VarlenLayout | None = None,
    draw: Tensor | None = None,
    bias: Bias | None = None,
) -> Tensor:
    """Compute softmax(q k_Jᵀ) · pinv(U) · softmax(q_I kᵀ) v with kept queries I and keys J, U = softmax(q_I k_Jᵀ).

    Args:
        q, k: (N,H,L,D), packed (1,H,T,D). v: (N,H,L,E), packed (1,H,T,E). mask: (N,L), not of packed rows.
        options: see ``CUROptions``.
        layout: places of packed rows, none of them shorter than ``count``; with impl=sdpa, not with score=farthest.
        draw: random numbers of score=random, see ``lra.ops.selection.select``.
        bias: a position bias, evaluated only at the kept rows and columns; not with ``triton*``.

    Returns:
        (N,H,L,E), packed (1,H,T,E). O(L c (D + E) + c³) time.

    Raises:
        ValueError: choices do not go together.
    """
    fused = options.impl in kernels.IMPLS
    if fused and bias is not None:
        raise ValueError(f"impl={options.impl} takes no position bias; use impl=sdpa or eager")
    mask = no_row_empty(mask)
    rows, cols = select(q, k, options, mask, layout=layout, draw=draw, fused=fused)  # (N,H,c)
    if fused:  # gathers, scatters and copies on the way
        where = {"rows": rows, "cols": cols, "mask": mask}
        return kernels.three_factor(q, k, v, pinv=options.pinv, **where, copy_rv=options.copy_rv, impl=options.impl)
    every = torch.arange(q.shape[2], device=q.device)
    biases = NO_BIAS if bias is None else (bias(every, cols), bias(rows, cols), bias(rows, every))
    marks, rule = _marks(mask, rows, cols), {"pinv": options.pinv, "weights": options.weights, "impl": options.impl}
    gather, put = (gather_kept, put_kept) if layout is None else (gather_packed, put_packed)
    out, rv = three_factor(q, k, v, gather(q, rows), gather(k, cols), **marks, bias=biases, layout=layout, **rule)
    return put(out, rows, rv) if options.copy_rv else out


def cur_plus(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, options: CUROptions, *, draw: Tensor | None = None
) -> Tensor:
    """Compute attention over cells of keys around the kept ones, corrected by the smoothed error of the kept rows.

    It needs no inverse, see ``lra.ops.cells``; arguments and result are those of ``cur``.
    """
    mask = no_row_empty(mask)
    if mask is not None:  # distances to padding must not overflow
        q, k = (x.masked_fill(~mask[:, None, :, None], 0) for x in (q, k))
    rows, cols = select(q, k, options, mask, draw=draw)
    marks = _marks(mask, rows, cols)
    out, rv = cells.corrected(q, k, v, gather_kept(q, rows), gather_kept(k, cols), **marks, impl=options.impl)
    return put_kept(out, rows, rv) if options.copy_rv else out


def _marks(mask: Tensor | None, rows: Tensor, cols: Tensor) -> dict[str, Tensor]:
    """Mark the real tokens, kept rows and kept columns for ``three_factor``."""
    if mask is None:
        return {}
    return {"mask": mask, "row_mask": gather_kept(mask, rows), "col_mask": gather_kept(mask, cols)}


def cur_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    count: int = 64,
    score: Score = "step",
    pairing: Pairing = "separate",
    class_token: bool = False,
    steps: int | None = 4,
    copy_rv: bool = True,
    columns: Columns = "kept",
    impl: Impl = "sdpa",
) -> Tensor:
    """Call ``cur`` like torch's scaled_dot_product_attention.

    Differences from torch: queries and keys are of the same L tokens with H heads each, the row of a padded query has
    no meaning, and there is neither dropout nor a causal form.

    Args:
        query, key: (N,H,L,D). value: (N,H,L,E).
        attn_mask: real tokens for all heads and queries: bool, True = real, (N,L) or (N,1,1,L), N may be 1.
        count: kept rows and columns, all of them if a row is shorter.
        steps: number of steps of the cubic inverse, None for the true one.
        columns: ``kept``, or ``cells`` for ``cur_plus``, which needs no inverse and is best with score="farthest".
        score, pairing, class_token, copy_rv, impl: see ``CUROptions``; score=random draws anew at every call.

    Returns:
        (N,H,L,E) in query's dtype.

    Raises:
        ValueError: an argument is not supported.
    """
    if is_causal:
        raise ValueError("is_causal=True: CUR keeps whole rows and columns of the map, so it has no causal form")
    if dropout_p:
        raise ValueError(f"dropout_p must be 0, not {dropout_p:g}: CUR never forms the map that dropout would act on")
    if query.dim() != 4 or key.shape != query.shape or value.shape[:-1] != query.shape[:-1]:
        shapes = ", ".join(str(tuple(t.shape)) for t in (query, key, value))
        raise ValueError(f"query, key and value must be (N,H,L,D), (N,H,L,D) and (N,H,L,E), not {shapes}")
    N, _, L, D = query.shape
    if not L or not D:
        raise ValueError(f"query and key must have at least one token and one feature, not {tuple(query.shape)}")
    if attn_mask is not None:
        given = f"{attn_mask.dtype} {tuple(attn_mask.shape)}"
        if attn_mask.dim() == 4 and attn_mask.shape[1:3] == (1, 1):
            attn_mask = attn_mask[:, 0, 0]
        if attn_mask.dtype is not torch.bool or attn_mask.shape not in ((N, L), (1, L)):
            raise ValueError(f"attn_mask must be bool, (N,L) or (N,1,1,L) with N = {N} and L = {L}, not {given}")
        attn_mask = attn_mask.expand(N, L)
    count, steps = _whole("count", count, 1), None if steps is None else _whole("steps", steps, 0)
    one_of("columns", columns, Columns)
    one_of("impl", impl, Impl if columns == "kept" else cells.Impl)
    pinv = exact if steps is None else partial(cubic, steps=steps)
    if impl in kernels.IMPLS:
        kernels.check(kept=min(count, L), head_dim=D, value_dim=value.shape[-1], pinv=pinv)
    rule = {"score": score, "pairing": pairing, "class_token": class_token}
    options = CUROptions(count=min(count, L), **rule, pinv=pinv, copy_rv=copy_rv, impl=impl)
    scaled = query if scale is None else query * (scale * D**0.5)
    return (cur if columns == "kept" else cur_plus)(scaled, key, value, attn_mask, options).to(query.dtype)


def _whole(name: str, value: object, least: int) -> int:
    """Convert a whole number, also numpy's or torch's, to Python's. Raises ValueError for others and for bools."""
    try:
        if isinstance(value, bool) or getattr(value, "dtype", None) is torch.bool:
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number of {least} or more, not {value!r}") from None
    if number < least:
        raise ValueError(f"{name} must be {least} or more, not {number}")
    return number
