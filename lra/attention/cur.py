"""CUR attention (CURformer: Francois et al., Machine Learning 114:139, 2025)."""

from functools import partial

import torch

from ..ops import triton as kernels
from ..ops.cur import cur, cur_packed
from ..ops.options import Range, in_range, one_of
from ..ops.pinv import cubic, mixes_batch
from ..ops.scores import Weights
from ..ops.selection import Pairing, Resample, Score
from ..ops.three_factor import Impl, Inverse, check_impl
from .base import Attention, Sizes


class CUR(Attention):
    """``lra.ops.cur.cur``: softmax(q k_Jᵀ) · pinv(U) · softmax(q_I kᵀ) v with kept queries I and keys J.

    Options are those of the function. resample: with score=random, ``train`` draws anew at every call while training
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
        one_of("score", score, Score)
        one_of("pairing", pairing, Pairing)
        one_of("resample", resample, Resample)
        check_impl(impl, weights)
        if impl in kernels.IMPLS:
            kernels.check(kept=count, head_dim=sizes.head_dim, value_dim=sizes.value_dim, pinv=pinv)
        self.count, self.score, self.pairing, self.class_token = count, score, pairing, class_token
        self.pinv, self.copy_rv, self.weights, self.impl, self.resample = pinv, copy_rv, weights, impl, resample
        self.mixes_batch = mixes_batch(pinv)
        self.takes_bias = impl not in kernels.IMPLS
        self.hole_free = score != "random" and not class_token  # these two look at positions
        # The random numbers of evaluation, one for each side, head and position.
        self.register_buffer("draw", torch.rand(2, sizes.heads, sizes.length) if score == "random" else None)

    def forward(self, q, k, v, mask=None, bias=None):
        return cur(q, k, v, mask, **self._options(), weights=self.weights, bias=bias, impl=self.impl)

    def varlen(self, q, k, v, layout):
        if self.impl != "sdpa" or self.score == "farthest" or min(layout.lengths) < self.count:
            return super().varlen(q, k, v, layout)
        return cur_packed(q, k, v, layout, **self._options())

    def _options(self) -> dict:
        return {
            "count": self.count,
            "score": self.score,
            "pairing": self.pairing,
            "class_token": self.class_token,
            "draw": None if self.training or self.resample == "always" else self.draw,
            "pinv": self.pinv,
            "copy_rv": self.copy_rv,
        }
