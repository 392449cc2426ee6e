"""CUR attention (CURformer: Francois et al., Machine Learning 114:139, 2025)."""

from functools import partial

import torch

from ..ops import triton as kernels
from ..ops.cur import cur
from ..ops.cur_naive import CUROptions, Pairing, Score
from ..ops.pinv import cubic, mixes_batch
from ..ops.scores import Weights
from ..ops.selection import Resample
from ..ops.three_factor import Impl, Inverse
from ..options import Range, in_range
from .base import Attention, Sizes


class CUR(Attention):
    """``lra.ops.cur.cur``: softmax(q k_Jᵀ) · pinv(U) · softmax(q_I kᵀ) v with kept queries I and keys J.

    Options: see ``lra.ops.cur_naive``. resample: with score=random, ``train`` draws anew at every call while training
    and keeps one draw in evaluation, the same for every example; ``always`` draws anew in evaluation too, as published.
    ``laplace`` weights need impl=eager and an inverse that knows the row sums, such as cubic(init="two_norms").

    O(L c (D + E) + c³) time. Raises ValueError for a count below 1 or above length, and with ``triton`` for what the
    kernels do not do.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        count: int = 64,
        score: Score = "abs",
        pairing: Pairing = "separate",
        pinv: Inverse = partial(cubic, steps=4),
        copy_rv: bool = True,
        class_token: bool | None = False,
        resample: Resample = "train",
        weights: Weights = "softmax",
        impl: Impl = "sdpa",
    ):
        super().__init__(sizes)
        in_range("count", count, Range(1, sizes.length), "length")
        rule = {"count": count, "score": score, "pairing": pairing, "class_token": bool(class_token)}
        self.options = CUROptions(**rule, pinv=pinv, copy_rv=copy_rv, weights=weights, impl=impl)
        if impl in kernels.IMPLS:
            kernels.check(kept=count, head_dim=sizes.head_dim, value_dim=sizes.value_dim, pinv=pinv)
        self.resample = resample
        self.mixes_batch = mixes_batch(pinv)
        self.takes_bias = impl not in kernels.IMPLS
        self.hole_free = score != "random" and not class_token  # these two look at positions
        # The random numbers of evaluation, one for each side, head and position.
        self.register_buffer("draw", torch.rand(2, sizes.heads, sizes.length) if score == "random" else None)

    def forward(self, q, k, v, mask=None, bias=None):
        return cur(q, k, v, mask, self.options, draw=self._draw(), bias=bias)

    def varlen(self, q, k, v, layout):
        options = self.options
        if options.impl != "sdpa" or options.score == "farthest" or min(layout.lengths) < options.count:
            return super().varlen(q, k, v, layout)
        return cur(q, k, v, None, options, layout=layout, draw=self._draw())

    @property
    def pinv(self) -> Inverse:
        return self.options.pinv

    def _draw(self):
        return None if self.training or self.resample == "always" else self.draw
