"""CUR attention (CURformer: Francois et al., Machine Learning 114:139, 2025)."""

import operator
from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from ..ops import triton as kernels
from ..ops import varlen
from ..ops.cells import corrected
from ..ops.options import one_of
from ..ops.pinv import cubic, exact, mixes_batch
from ..ops.scores import Weights
from ..ops.selection import Pairing, Resample, Score, Select, gather_kept, no_row_empty
from ..ops.three_factor import Impl, three_factor
from ..ops.varlen import VarlenLayout
from .base import Attention

Cells = Literal["eager", "sdpa"]  # impl of ``CURPlus``
Columns = Literal["kept", "cells"]
COLUMNS = get_args(Columns)


class CUR(Attention):
    """softmax(q k_Jᵀ) · pinv(U) · softmax(q_I kᵀ) v with kept queries I and keys J, U = softmax(q_I k_Jᵀ).

    count: how many rows and columns are kept (m in the paper). score, pairing, class_token, resample: which ones, see
    ``lra.ops.selection.Select``. copy_rv: kept rows of the output are those of softmax(q_I kᵀ) v, which are exact.
    pinv: (..., c, c) -> (..., c, c). impl: ``eager`` | ``sdpa`` | ``triton`` and weights: see ``lra.ops.three_factor``;
    ``laplace`` weights need impl=eager and an inverse that knows the row sums, such as cubic(init="two_norms").
    bias(rows, cols) is a position bias, evaluated at the kept rows and columns only; ``triton`` takes none.

    O(L c (D + E) + c³) time. Raises ValueError where count is below 1 or above length, and with ``triton`` for what the
    kernels do not do.
    """

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        value_dim: int,
        length: int,
        dropout: float = 0.0,
        count: int = 64,
        score: Score = "abs",
        pairing: Pairing = "separate",
        pinv: Callable[[Tensor], Tensor] = partial(cubic, steps=4),
        copy_rv: bool = True,
        class_token: bool | None = False,
        resample: Resample = "train",
        weights: Weights = "softmax",
        impl: Impl = "sdpa",
    ):
        super().__init__(heads=heads, head_dim=head_dim, value_dim=value_dim, length=length, dropout=dropout)
        if not 1 <= count <= length:
            raise ValueError(f"attn.count must be between 1 and the task's length {length}, not {count}")
        one_of("impl", impl, Impl)
        one_of("weights", weights, Weights)
        if weights != "softmax" and impl != "eager":
            raise ValueError(f"attn.weights={weights} needs attn.impl=eager, not {impl}")
        if impl == "triton":
            kernels.check(kept=count, head_dim=head_dim, value_dim=value_dim, pinv=pinv, dropout=dropout)
        self.count, self.pinv, self.copy_rv, self.weights, self.impl = count, pinv, copy_rv, weights, impl
        self.mixes_batch = mixes_batch(pinv)
        self.packs = impl == "sdpa" and score != "farthest"
        self.select = Select(
            score=score,
            pairing=pairing,
            class_token=class_token,
            resample=resample,
            heads=heads,
            length=length,
            fused=impl == "triton",
        )

    def forward(self, q, k, v, mask=None, bias: Callable[[Tensor, Tensor], Tensor] | None = None):
        if isinstance(mask, VarlenLayout):
            return self._packed(q, k, v, mask)
        mask = no_row_empty(mask)
        rows, cols = self.select(q, k, self.count, mask)  # (N,H,c)
        if self.impl == "triton":  # gathers, scatters and copies on the way
            if bias is not None:
                raise ValueError("attn.impl=triton takes no position bias; use attn.impl=sdpa or eager")
            kept = {"rows": rows, "cols": cols, "mask": mask, "copy_rv": self.copy_rv}
            return kernels.three_factor(q, k, v, pinv=self.pinv, **kept)
        every = torch.arange(q.shape[2], device=q.device)
        out, rv = three_factor(
            q,
            k,
            v,
            gather_kept(q, rows),
            gather_kept(k, cols),
            pinv=self.pinv,
            mask=mask,
            row_mask=None if mask is None else gather_kept(mask, rows),
            col_mask=None if mask is None else gather_kept(mask, cols),
            weights=self.weights,
            bias=(None, None, None) if bias is None else (bias(every, cols), bias(rows, cols), bias(rows, every)),
            impl=self.impl,
        )
        return out.scatter(2, rows[..., None].expand_as(rv), rv.to(out.dtype)) if self.copy_rv else out

    def _packed(self, q: Tensor, k: Tensor, v: Tensor, batch: VarlenLayout) -> Tensor:
        """q, k, v (1,H,T,·) -> (1,H,T,E); padded after all where a row is shorter than ``count``."""
        if min(batch.lengths) < self.count:
            return batch.pack(self(*(batch.unpack(x, 2) for x in (q, k, v)), batch.mask), 2)
        rows, cols = self.select(q, k, self.count, batch)  # (N,H,c), places among the T
        kept = varlen.gather_packed(q, rows), varlen.gather_packed(k, cols)
        out, rv = three_factor(q, k, v, *kept, pinv=self.pinv, mask=batch)
        return varlen.put(out, rows, rv.to(out.dtype)) if self.copy_rv else out


class CURPlus(Attention):
    """CUR without an inverse: attention over cells of keys around the kept ones, and a smooth correction that the
    error R v - U v̄ of the kept rows makes, see ``lra.ops.cells``.

    Closer to softmax than ``CUR`` in a model that was trained with softmax, at the same count; keeping everything is
    softmax. Options as in ``CUR``, and impl is ``eager`` | ``sdpa``.
    """

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        value_dim: int,
        length: int,
        dropout: float = 0.0,
        count: int = 64,
        score: Score = "farthest",
        pairing: Pairing = "separate",
        copy_rv: bool = True,
        class_token: bool | None = False,
        resample: Resample = "train",
        impl: Cells = "sdpa",
    ):
        super().__init__(heads=heads, head_dim=head_dim, value_dim=value_dim, length=length, dropout=dropout)
        if not 1 <= count <= length:
            raise ValueError(f"attn.count must be between 1 and the task's length {length}, not {count}")
        one_of("impl", impl, Cells)
        self.count, self.copy_rv, self.impl = count, copy_rv, impl
        self.select = Select(
            score=score, pairing=pairing, class_token=class_token, resample=resample, heads=heads, length=length
        )

    def forward(self, q, k, v, mask=None):
        mask = no_row_empty(mask)
        if mask is not None:  # distances to padding must not overflow
            q, k = (x.masked_fill(~mask[:, None, :, None], 0) for x in (q, k))
        rows, cols = self.select(q, k, self.count, mask)  # (N,H,c)
        marks = {} if mask is None else {"row_mask": gather_kept(mask, rows), "col_mask": gather_kept(mask, cols)}
        out, rv = corrected(q, k, v, gather_kept(q, rows), gather_kept(k, cols), mask=mask, impl=self.impl, **marks)
        return out.scatter(2, rows[..., None].expand_as(rv), rv.to(out.dtype)) if self.copy_rv else out


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
    """``CUR`` called like torch's scaled_dot_product_attention: query, key (N,H,L,D), value (N,H,L,E) -> (N,H,L,E).

    count: rows and columns that are kept, all of them where a row is shorter. steps: of the cubic inverse, None for the
    true one. columns: ``kept``, or ``cells`` for ``CURPlus``, which has no inverse and does best with score="farthest".
    The other options are those of ``CUR``; ``score="random"`` draws anew at every call.

    Unlike torch's: queries and keys are the same L tokens of H heads each. attn_mask says which tokens are real, for
    all heads and queries alike: bool, True takes part, (N,L) or (N,1,1,L), N may be 1; a padded query's row has no
    meaning. There is no dropout and no causal form.

    Raises ValueError for what it cannot do.
    """
    if is_causal:
        raise ValueError("is_causal=True: CUR keeps whole rows and columns of the map, so it has no causal form")
    if dropout_p:
        raise ValueError(f"dropout_p must be 0, not {dropout_p:g}: CUR never forms the map that dropout would act on")
    if query.dim() != 4 or key.shape != query.shape or value.shape[:-1] != query.shape[:-1]:
        shapes = ", ".join(str(tuple(t.shape)) for t in (query, key, value))
        raise ValueError(f"query, key and value must be (N,H,L,D), (N,H,L,D) and (N,H,L,E), not {shapes}")
    N, H, L, D = query.shape
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
    if columns not in COLUMNS:
        raise ValueError(f"columns must be {' or '.join(COLUMNS)}, not {columns!r}")
    inverse = {"pinv": exact if steps is None else partial(cubic, steps=steps)}
    mechanism = (CUR if columns == "kept" else CURPlus)(
        heads=H,
        head_dim=D,
        value_dim=value.shape[-1],
        length=L,
        count=min(count, L),
        score=score,
        pairing=pairing,
        copy_rv=copy_rv,
        class_token=class_token,
        resample="always",
        impl=impl,
        **(inverse if columns == "kept" else {}),
    )
    return mechanism(query if scale is None else query * (scale * D**0.5), key, value, attn_mask).to(query.dtype)


def _whole(name: str, value: object, least: int) -> int:
    """Any kind of whole number, of numpy and torch too, as Python's; raises ValueError for others, and for bools."""
    try:
        if isinstance(value, bool) or getattr(value, "dtype", None) is torch.bool:
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number of {least} or more, not {value!r}") from None
    if number < least:
        raise ValueError(f"{name} must be {least} or more, not {number}")
    return number
