"""CUR without an inverse (``lra.ops.cells``)."""

import torch

from ..ops.cells import Impl
from ..ops.cur import cur_plus
from ..ops.cur_naive import CUROptions, Pairing, Score
from ..ops.selection import Resample
from ..options import Range, in_range
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
        rule = {"count": count, "score": score, "pairing": pairing, "class_token": bool(class_token)}
        self.options = CUROptions(**rule, copy_rv=copy_rv, impl=impl)
        self.resample = resample
        self.hole_free = score != "random" and not class_token  # these two look at positions
        # The random numbers of evaluation, one for each side, head and position.
        self.register_buffer("draw", torch.rand(2, sizes.heads, sizes.length) if score == "random" else None)

    def forward(self, q, k, v, mask=None):
        draw = None if self.training or self.resample == "always" else self.draw
        return cur_plus(q, k, v, mask, self.options, draw=draw)
