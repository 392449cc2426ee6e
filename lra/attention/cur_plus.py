"""CUR without an inverse (``lra.ops.cells``)."""

import torch

from ..ops.cells import Impl
from ..ops.cur import cur_plus
from ..ops.options import Range, in_range, one_of
from ..ops.selection import Pairing, Resample, Score
from .base import Attention, Sizes


class CURPlus(Attention):
    """``lra.ops.cur.cur_plus``: attention over cells of keys around the kept ones, and a smooth correction that the
    error R v - U v̄ of the kept rows makes.

    Closer to softmax than ``CUR`` in a model that was trained with softmax, at the same count; keeping everything is
    softmax. Options as in ``lra.attention.cur.CUR``, and impl is ``eager`` | ``sdpa``.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        count: int = 64,
        score: Score = "farthest",
        pairing: Pairing = "separate",
        copy_rv: bool = True,
        class_token: bool | None = False,
        resample: Resample = "train",
        impl: Impl = "sdpa",
    ):
        super().__init__(sizes)
        in_range("count", count, Range(1, sizes.length), "length")
        one_of("score", score, Score)
        one_of("pairing", pairing, Pairing)
        one_of("resample", resample, Resample)
        one_of("impl", impl, Impl)
        self.count, self.score, self.pairing, self.class_token = count, score, pairing, class_token
        self.copy_rv, self.resample, self.impl = copy_rv, resample, impl
        self.hole_free = score != "random" and not class_token  # these two look at positions
        # The random numbers of evaluation, one for each side, head and position.
        self.register_buffer("draw", torch.rand(2, sizes.heads, sizes.length) if score == "random" else None)

    def forward(self, q, k, v, mask=None):
        return cur_plus(
            q,
            k,
            v,
            mask,
            count=self.count,
            score=self.score,
            pairing=self.pairing,
            class_token=self.class_token,
            draw=None if self.training or self.resample == "always" else self.draw,
            copy_rv=self.copy_rv,
            impl=self.impl,
        )
