"""CUR attention (CURformer: Francois et al., Machine Learning 114:139, 2025)."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from .. import kernels
from ..linalg import cubic
from ..lowrank import IMPLS, three_factor
from ..select import Select
from ..weights import check_weights
from .base import Attention


class CUR(Attention):
    """softmax(q k_Jᵀ) · pinv(U) · softmax(q_I kᵀ) v with kept queries I and keys J, U = softmax(q_I k_Jᵀ).

    count: how many rows and columns are kept (m in the paper). score, pairing, class_token, resample: which ones, see
    ``lra.select.Select``. copy_rv: kept rows of the output are those of softmax(q_I kᵀ) v, which are exact.
    pinv: (..., c, c) -> (..., c, c). impl: ``eager`` | ``sdpa`` | ``triton`` and weights: see ``lra.lowrank``;
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
        score: str = "abs",
        pairing: str = "separate",
        pinv: Callable[[Tensor], Tensor] = partial(cubic, steps=4),
        copy_rv: bool = True,
        class_token: bool = False,
        resample: str = "train",
        weights: str = "softmax",
        impl: str = "sdpa",
    ):
        super().__init__(heads=heads, head_dim=head_dim, value_dim=value_dim, length=length, dropout=dropout)
        if not 1 <= count <= length:
            raise ValueError(f"attn.count must be between 1 and the task's length {length}, not {count}")
        if impl not in IMPLS:
            raise ValueError(f"attn.impl must be one of {', '.join(IMPLS)}, not {impl!r}")
        check_weights(weights)
        if weights != "softmax" and impl != "eager":
            raise ValueError(f"attn.weights={weights} needs attn.impl=eager, not {impl}")
        if impl == "triton":
            kernels.check(kept=count, head_dim=head_dim, value_dim=value_dim, pinv=pinv, dropout=dropout)
        self.count, self.pinv, self.copy_rv, self.weights, self.impl = count, pinv, copy_rv, weights, impl
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
            take(q, rows),
            take(k, cols),
            pinv=self.pinv,
            mask=mask,
            row_mask=None if mask is None else take(mask, rows),
            col_mask=None if mask is None else take(mask, cols),
            weights=self.weights,
            bias=(None, None, None) if bias is None else (bias(every, cols), bias(rows, cols), bias(rows, every)),
            impl=self.impl,
        )
        return out.scatter(2, rows[..., None].expand_as(rv), rv.to(out.dtype)) if self.copy_rv else out


def take(x: Tensor, index: Tensor) -> Tensor:
    """Rows of x (N,H,L,D), or of a mask x (N,L), at index (N,H,c)."""
    if x.dim() == 2:
        return x[:, None].expand(-1, index.shape[1], -1).gather(2, index)
    return x.gather(2, index[..., None].expand(-1, -1, -1, x.shape[-1]))
